              -- How long until enough of both sets have ended.
              excess = others + criticals + cost - p1
              if excess > 0 then
                local a = call('ZRANGEBYSCORE', z, live, '+inf', 'WITHSCORES', 'LIMIT', 0, excess)
                local b = call('ZRANGEBYSCORE', other_key, live, '+inf', 'WITHSCORES', 'LIMIT', 0, excess)
                local i, j, score = 2, 2, nil
                for _ = 1, excess do
                  local x, y = a[i] and tonumber(a[i]), b[j] and tonumber(b[j])
                  if x and (not y or x <= y) then score, i = x, i + 2 elseif y then score, j = y, j + 2 end
                end
                if score and score - n > retry then retry = score - n end
              end
