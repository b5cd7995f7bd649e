    if sweep then
      -- They were counted, because some may have ended: those go.
      call('ZREMRANGEBYSCORE', set, '-inf', sweep)
      if set_other then call('ZREMRANGEBYSCORE', set_other, '-inf', sweep) end
    end
    if units == 0 then
      -- Held already: all of its units last longer, none is added.
      local member, unit = lease, 0
      while call('ZADD', set, 'XX', 'CH', score, member) == 1 do
        unit = unit + 1
        member = lease .. pack('>I2', unit)
      end
    else
      local added = pcall('ZADD', set, score, lease)
      if added ~= 1 and type(added) == 'table' then
        if find(added.err, 'WRONGTYPE', 1, true) then call('DEL', set) end
        call('ZADD', set, score, lease)
      end
      for unit = 1, units - 1 do call('ZADD', set, score, lease .. pack('>I2', unit)) end
    end
    call('PEXPIRE', set, lease_lasts)
    set = nil
    if more_leases then
      local more = more_leases
      set, set_other, sweep, score, units, lease, lease_lasts = more[1], more[2], more[3], more[4], more[5], more[6], more[7]
      more_leases = more[8]
    end
