          -- The clock went back for good: every lease goes back by as much. Where they are too many for one call, those that
          -- would last longer than a lease taken now are made to last as long as that, some in each call until all are:
          -- so long `t` is -1.
          steps = steps or 1000
          local last = other_key and k + 1 or k
          local count = call('ZCARD', z)
          if other_key then count = count + call('ZCARD', other_key) end
          moved = true
          if t >= 0 and count <= steps then
            for set = k, last do
              local list = call('ZRANGE', KEYS[set], 0, -1, 'WITHSCORES')
              for i = 1, #list, 2 do call('ZADD', KEYS[set], format('%d', list[i + 1] - shift), list[i]) end
            end
            b, t, e = b - shift, n, e - shift
            steps = steps - count
          else
            local ends = n + p2
            local latest = format('%d', ends)
            for set = k, last do
              local list = call('ZRANGEBYSCORE', KEYS[set], '(' .. latest, '+inf', 'LIMIT', 0, steps)
              for i = 1, #list do call('ZADD', KEYS[set], latest, list[i]) end
              steps = steps - #list
            end
            if b > ends then b = ends end
            if steps > 0 then
              t = n
              if e > ends then e = ends end
            else
              t = -1
            end
          end
