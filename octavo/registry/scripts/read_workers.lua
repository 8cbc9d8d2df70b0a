-- Read worker records and forget the ids whose lease has ended.
--
-- KEYS  1 set of worker ids, 2... their records
-- ARGV  1 number of fields, then the field names, then the worker ids in the order of KEYS
--
-- Returns one list per record: its fields, or an empty one when there is no record. A key of another
-- type gives a list of a length that no record has. Forgetting fails on a read-only replica; that
-- does not matter.
local num_fields = tonumber(ARGV[1])
local fields = {}
for i = 1, num_fields do
  fields[i] = ARGV[1 + i]
end
local records = {}
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    redis.pcall('SREM', KEYS[1], ARGV[num_fields + i])
    records[i - 1] = {}
  else
    local values = redis.pcall('HMGET', KEYS[i], unpack(fields))
    if values.err then
      values = { false }
    end
    records[i - 1] = values
  end
end
return records
