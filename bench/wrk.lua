-- Appends for wrk: each to one of many runs, under its fence, with an event id that is new.
-- Arguments: a file of lines "KEY TOKEN", the API key, the events of one call, JSON of one event's
-- data, a word that no other process has. Without any, whatever address it was given is asked.

local runs, tokens, before, after, word, events = {}, {}, "", "", "", 0
local sent, asked = 0, nil

local function read_runs(name)
   for line in io.lines(name) do
      local key, token = line:match("(%S+) (%S+)")
      runs[#runs + 1], tokens[#tokens + 1] = key, token
   end
end

function init(args)
   if #args == 0 then
      return
   end
   read_runs(args[1])
   events, word = tonumber(args[3]), args[5]
   before = '{"type":"step.done","data":' .. args[4] .. ',"id":"' .. word .. "-"
   after = " HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " .. args[2]
      .. "\r\nContent-Type: application/json\r\nAgentstate-Fence: "
   math.randomseed(tonumber(word:match("%d+")))
end

local function body()
   local lines = {}
   for n = 1, events do
      sent = sent + 1
      lines[n] = before .. sent .. '"}'
   end
   return '{"add":{"steps":' .. events .. '},"events":[' .. table.concat(lines, ",") .. "]}"
end

function request()
   if events == 0 then
      asked = asked or wrk.format()
      return asked
   end
   local n = math.random(#runs)
   local told = body()
   return "POST /api/v1/runs/" .. runs[n] .. "/events" .. after .. tokens[n]
      .. "\r\nContent-Length: " .. #told .. "\r\n\r\n" .. told
end

function done(summary, latency, requests)
   local errors = summary.errors
   io.write(string.format(
      'FOUND {"requests":%d,"us":%d,"refused":%d,"broken":%d,"p50_us":%d,"p99_us":%d}\n',
      summary.requests, summary.duration, errors.status,
      errors.connect + errors.read + errors.write + errors.timeout,
      latency:percentile(50), latency:percentile(99)))
end
