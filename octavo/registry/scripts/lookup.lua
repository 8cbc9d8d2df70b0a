-- How many leading blocks of a prompt does each live worker hold?
--
-- KEYS  blocks in the order of the chain
-- ARGV  1 number of workers, 2... worker id, epoch, worker id, epoch, ...
--
-- Returns { {matched blocks of worker 1, of worker 2, ...} }; what else a look-up finds or claims is
-- to be added behind the first element, its arguments behind the workers'. Reads only, and stops at
-- the first block that no worker continues with.
local num_workers = tonumber(ARGV[1])
local matched, live, ids = {}, {}, {}
for i = 1, num_workers do
  matched[i], live[i], ids[i] = 0, i, ARGV[2 * i]
end

for depth = 1, #KEYS do
  local epochs = redis.pcall('HMGET', KEYS[depth], unpack(ids))
  if epochs.err then
    break
  end
  local still, still_ids = {}, {}
  for j = 1, #live do
    local worker = live[j]
    if epochs[j] == ARGV[2 * worker + 1] then
      matched[worker] = depth
      still[#still + 1] = worker
      still_ids[#still_ids + 1] = ids[j]
    end
  end
  if #still == 0 then
    break
  end
  live, ids = still, still_ids
end
return { matched }
