-- Say that a worker no longer holds blocks; entries of its other incarnations stay untouched.
--
-- KEYS  1 the worker's record, 2... blocks
-- ARGV  1 worker id, 2 epoch, 3 sequence of this write
local removed = 0
for i = 2, #KEYS do
  if redis.pcall('HGET', KEYS[i], ARGV[1]) == ARGV[2] then
    removed = removed + redis.call('HDEL', KEYS[i], ARGV[1])
  end
end
if redis.pcall('HGET', KEYS[1], 'epoch') == ARGV[2] then
  redis.call('HSET', KEYS[1], 'sequence', ARGV[3])
end
return removed
