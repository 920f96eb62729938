--- The edit distance of two words (Levenshtein), for naming the nearest of the known ones.
-- @module umavez.distance

--- @tparam string a
-- @tparam string b
-- @treturn int insertions, deletions and replacements of one octet that make b of a
return function(a, b)
  local row = {}
  for j = 0, #b do
    row[j] = j
  end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local above = row[j]
      local cost = a:byte(i) == b:byte(j) and 0 or 1
      row[j] = math.min(above + 1, row[j - 1] + 1, diagonal + cost)
      diagonal = above
    end
  end
  return row[#b]
end
