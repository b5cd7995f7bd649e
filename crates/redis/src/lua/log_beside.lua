              -- It stays where it is and ages as it did, until it leaves room for this call.
              local old = strings[name]
              local o2, grain_then, gone_then = unpack('<ddd', old, 10)
              local entries_then = (#old - 41) / 16
              local first = 1
              while first <= entries_then do
                local t, up_to = unpack('<dd', old, 26 + 16 * first)
                if n < t + o2 then break end
                gone_then, first = up_to, first + 1
              end
              if first <= entries_then then
                local excess = unpack('<d', old, 34 + 16 * entries_then) - gone_then - (p1 - cost)
                local from, to = first, entries_then
                while from < to do
                  local middle = floor((from + to) / 2)
                  if unpack('<d', old, 34 + 16 * middle) - gone_then >= excess then to = middle else from = middle + 1 end
                end
                local wait = excess > 0 and unpack('<d', old, 26 + 16 * from) + o2 - n or 0
                if wait > 0 then
                  if extra > 0 then
                    if wait > retry then retry = wait end
                  else
                    -- A call counts until it is over for one of them. It moves within its grain as long as that lasts.
                    if grain_then > 1 then retry = retry + grain_then end
                    if wait < retry then retry = wait end
                  end
                  if retry > reset then reset = retry end
                end
              end
