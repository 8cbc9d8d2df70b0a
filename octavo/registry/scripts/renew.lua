-- Prolong a lease and say which of the worker's writes this server has.
--
-- KEYS  1 set of worker ids, 2 the worker's record
-- ARGV  1 worker id, 2 epoch, 3 lease in ms
--
-- Returns the sequence of the last write that reached this server. A smaller one than the worker
-- remembers means that writes were lost (a failover, a restart from an older dump).
if redis.pcall('HGET', KEYS[2], 'epoch') ~= ARGV[2] then
  return redis.error_reply('GONE the lease of this epoch has ended')
end
redis.call('PEXPIRE', KEYS[2], ARGV[3])
if type(redis.pcall('SADD', KEYS[1], ARGV[1])) == 'table' then
  return redis.error_reply('GONE the set of workers is no set')
end
return redis.call('HGET', KEYS[2], 'sequence')
