        local set, ends, units, n, lease, other_key, z = v[1], v[2], v[3], v[4], v[5], v[6], v[7]
        local score = string.format('%.0f', ends)
        if units == 0 then
          -- Held already: all of its units last longer, none is added.
          local member, unit = lease, 0
          while call('ZSCORE', set, member) do
            call('ZADD', set, score, member)
            unit = unit + 1
            member = lease .. pack('>I2', unit)
          end
          call('ZADD', set, string.format('%.0f', n), 't')
        else
          local over = string.format('%.0f', n)
          call('ZREMRANGEBYSCORE', z, '-inf', over)
          if other_key then call('ZREMRANGEBYSCORE', other_key, '-inf', over) end
          call('ZADD', set, score, lease, over, 't')
          for unit = 1, units - 1 do call('ZADD', set, score, lease .. pack('>I2', unit)) end
        end
        -- A lease taken before may last longer, if leases were longer then.
        local newest = call('ZRANGE', set, -1, -1, 'WITHSCORES')
        call('PEXPIRE', set, ceil((tonumber(newest[2]) - n) / 1000) + spare)
