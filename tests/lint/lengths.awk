# Functions of at most 80 lines (the aim is 70): C functions begin with a line that ends in "{" at column 1 of a
# definition and end with "}" at column 1; Lua functions at column 1 likewise.
function ended(what) {
  if (FNR - begun + 1 > 80) print FILENAME ":" begun ": " FNR - begun + 1 " lines: " what
  begun = 0
}
FNR == 1 { begun = 0 }
FILENAME ~ /\.c$/ && /^[a-z].*\) \{$/ { begun = FNR; head = $0 }
FILENAME ~ /\.c$/ && /^}/ && begun { ended(head) }
FILENAME ~ /\.lua$/ && /^(local )?function |^[A-Za-z_.]+ = function/ && !/ end$/ { begun = FNR; head = $0 }
FILENAME ~ /\.lua$/ && /^end\>/ && begun { ended(head) }
