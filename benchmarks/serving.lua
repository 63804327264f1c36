-- What wrk sends and checks, for serving.py. SERVING_CASES: a file with a line for each request that may be sent:
-- the probabilities by the first export, by the second (separated by commas; none: the request is malformed), its body.
-- One connection a thread, so that an answer is that of the request before it.
local threads = {}
local cases = {}
counts = { first = 0, second = 0, refused = 0, wrong = 0 }
local asked

function setup(thread)
  thread:set("seed", #threads + 1)
  table.insert(threads, thread)
end

local function numbers(text)
  local values = {}
  for value in text:gmatch("[^,]+") do table.insert(values, tonumber(value)) end
  return values
end

function init()
  math.randomseed(seed)
  for line in io.lines(os.getenv("SERVING_CASES")) do
    local first, second, body = line:match("^([^\t]*)\t([^\t]*)\t(.*)$")
    table.insert(cases, { first = numbers(first), second = numbers(second), body = body })
  end
end

function request()
  asked = cases[math.random(#cases)]
  return wrk.format("POST", "/score", { ["content-type"] = "application/json" }, asked.body)
end

local function near(values, known)
  if #values ~= #known then return false end
  for i, value in ipairs(values) do
    if math.abs(value - known[i]) > 1e-6 then return false end
  end
  return true
end

local function outcome(status, body)
  if #asked.first == 0 then
    return status >= 400 and status < 500 and body:find('"error"', 1, true) and "refused" or "wrong"
  end
  local list = status == 200 and body:match('"scores": %[([^%]]*)%]')
  if not list then return "wrong" end
  local values = numbers(list:gsub(" ", ""))
  return near(values, asked.first) and "first" or near(values, asked.second) and "second" or "wrong"
end

function response(status, headers, body)
  local name = outcome(status, body)
  if name == "wrong" and counts.wrong < 3 then io.stderr:write(status, " ", asked.body:sub(1, 200), " ", body:sub(1, 200), "\n") end
  counts[name] = counts[name] + 1
end

function done(summary, latency)
  local total = { first = 0, second = 0, refused = 0, wrong = 0 }
  for _, thread in ipairs(threads) do
    for name, count in pairs(thread:get("counts")) do total[name] = total[name] + count end
  end
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "first": %d, "second": %d, "refused": %d, "wrong": %d, "lost": %d, "seconds": %.2f, ' ..
      '"p50_ms": %.3f, "p99_ms": %.3f, "max_ms": %.1f}\n',
    summary.requests, total.first, total.second, total.refused, total.wrong,
    errors.connect + errors.read + errors.write + errors.timeout, summary.duration / 1e6,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, latency.max / 1e3))
end
