-- Write a worker's record and start its lease.
--
-- KEYS  1 set of worker ids, 2 the worker's record
-- ARGV  1 worker id, 2 epoch, 3 lease in ms, 4 "takeover" or "renewal", 5... field, value, ... (epoch among them)
--
-- A worker that starts takes its id over from any earlier incarnation. One that only lost its lease
-- must not: two processes with one id would take it from each other for ever.
if ARGV[4] ~= 'takeover' then
  local holder = redis.pcall('HGET', KEYS[2], 'epoch')
  if type(holder) == 'string' and holder ~= ARGV[2] then
    return redis.error_reply('GONE another incarnation holds this worker id')
  end
end
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'sequence', 0, unpack(ARGV, 5))
redis.call('PEXPIRE', KEYS[2], ARGV[3])
if type(redis.pcall('SADD', KEYS[1], ARGV[1])) == 'table' then -- not a set: nothing of ours
  redis.call('DEL', KEYS[1])
  redis.call('SADD', KEYS[1], ARGV[1])
end
return 1
