-- End the lease of one's own epoch and leave a note that this worker left on purpose.
--
-- KEYS  1 the worker's record
-- ARGV  1 epoch, 2 life of the note in ms
--
-- A missing record can also mean that Redis restarted empty, and routers then keep the worker for a
-- while; the note tells them not to.
if redis.pcall('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'left', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
