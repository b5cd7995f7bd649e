        -- p1 limit, p2 window; a: current, b: previous, as of the window that `t` lies in.
        local index = floor(n / p2)
        local age = index - floor(t / p2)
        if b < 0 then b = 0 end
        if age == 1 then a, b = 0, a elseif age > 1 then a, b = 0, 0 end
        local left = p2 - (n - index * p2)
        local used = ceil(b * left / p2) + a
        remaining = p1 > used and p1 - used or 0
        reset = a > 0 and left + p2 or b > 0 and left or 0
        na, nb = a, b
        if op <= 1 then
          if cost > p1 then
            yes, retry = false, -1
          elseif used + cost > p1 then
            yes = false
            local room = p1 - cost
            if a <= room then
              retry = left - floor((room - a) * p2 / b)
            else
              retry = left + p2 - floor(room * p2 / a)
            end
            if retry < 0 then retry = 0 end
          elseif op == 0 and cost > 0 then
            write, na = true, a + cost
          end
        elseif op <= 3 then
          local ago = index - floor(taken / p2)
          if ago <= 0 then na = a > cost and a - cost or 0 elseif ago == 1 then nb = b > cost and b - cost or 0 end
          write = na ~= a or nb ~= b
        else
          yes = false
        end
        if write then
          used = ceil(nb * left / p2) + na
          after = p1 > used and p1 - used or 0
          reset_then = na > 0 and left + p2 or nb > 0 and left or 0
        end
