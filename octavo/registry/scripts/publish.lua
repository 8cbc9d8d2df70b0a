-- Say that a worker holds blocks.
--
-- KEYS  1 the worker's record, 2... blocks
-- ARGV  1 worker id, 2 epoch, 3 sequence of this write, 4 life of a block's entry in ms,
--       5 prefix of the worker records
if redis.pcall('HGET', KEYS[1], 'epoch') ~= ARGV[2] then
  return redis.error_reply('GONE the lease of this epoch has ended')
end

-- Owners that died stay in a block's hash: a prompt that every worker has would collect the ids of
-- all workers that ever ran. So each time a hash has grown by this many it is weeded.
local TRIM_EVERY = 32

local function trim(block)
  local owners = redis.call('HGETALL', block)
  for i = 1, #owners, 2 do
    local live = redis.pcall('HGET', ARGV[5] .. owners[i], 'epoch')
    if live ~= owners[i + 1] then
      redis.call('HDEL', block, owners[i])
    end
  end
end

for i = 2, #KEYS do
  local added = redis.pcall('HSET', KEYS[i], ARGV[1], ARGV[2])
  if type(added) == 'table' then
    if string.sub(added.err, 1, 9) ~= 'WRONGTYPE' then
      return added
    end
    redis.call('DEL', KEYS[i])
    redis.call('HSET', KEYS[i], ARGV[1], ARGV[2])
  elseif added == 1 and redis.call('HLEN', KEYS[i]) % TRIM_EVERY == 0 then
    trim(KEYS[i])
  end
  redis.call('PEXPIRE', KEYS[i], ARGV[4])
end
redis.call('HSET', KEYS[1], 'sequence', ARGV[3])
return #KEYS - 1
