        -- p1 capacity, p2 units of a token, p3 units paid back per microsecond; a: debt in units.
        -- extra: debt that delays nobody.
        local full = p1 * p2
        local debt = a - p3 * (n - t)
        if debt < 0 then debt = 0 elseif debt > full then debt = full end
        local free = full - debt
        remaining, reset = (free - free % p2) / p2, (debt + -debt % p3) / p3
        na = debt
        if op <= 1 then
          if cost > p1 then
            yes, retry = false, -1
          else
            local more = debt + cost * p2
            if more > full then
              yes, retry = false, ceil((more - full) / p3)
            else
              if debt > extra then delay = ceil((debt - extra) / p3) end
              if op == 0 and cost > 0 then write, na = true, more end
            end
          end
        elseif op <= 3 then
          local back = cost * p2
          if op == 3 then back = back - p3 * (n - taken) end
          if back > debt then back = debt end
          if back > 0 then write, na = true, debt - back end
        else
          yes = false
        end
        if write then
          free = full - na
          after, reset_then = (free - free % p2) / p2, (na + -na % p3) / p3
        end
