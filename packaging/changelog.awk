# CHANGELOG.md as Debian's changelog: one entry a version, one line an item. Variables: maintainer, date (RFC 2822, for an entry
# without a date of its own). Invariant: it takes no clock; what it prints depends on its input alone.
function finish() {
  flush()
  if (version != "") printf "\n -- %s  %s\n", maintainer, at
}
# Lines of at most 80 columns, for Debian's tools warn of longer ones.
function flush(    words, n, i, line) {
  if (item == "") return
  n = split(item, words, " ")
  line = "  *"
  for (i = 1; i <= n; i++) {
    if (length(line) + 1 + length(words[i]) > 80) { print line; line = "   " }
    line = line " " words[i]
  }
  print line
  item = ""
}
/^## \[[0-9]/ {
  if (version != "") { finish(); print "" }
  version = substr($2, 2, length($2) - 2)
  at = date
  if ($4 ~ /^[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]$/) {
    split($4, ymd, "-")
    y = ymd[1]; m = ymd[2] + 0; d = ymd[3] + 0
    # Zeller, for the day of the week; awk has no calendar that needs no clock.
    zm = m < 3 ? m + 12 : m; zy = m < 3 ? y - 1 : y
    w = (d + int(13 * (zm + 1) / 5) + zy + int(zy / 4) - int(zy / 100) + int(zy / 400)) % 7
    at = sprintf("%s, %02d %s %d 00:00:00 +0000", substr("SatSunMonTueWedThuFri", w * 3 + 1, 3), d,
      substr("JanFebMarAprMayJunJulAugSepOctNovDec", m * 3 - 2, 3), y)
  }
  printf "monky-deployd (%s) stable; urgency=medium\n\n", version
  next
}
version == "" { next }
/^### / { flush(); section = $2; next }
/^- / { flush(); item = section ": " substr($0, 3); next }
/^  [^ ]/ && item != "" { item = item " " substr($0, 3); next }
/^[^ ]/ { flush(); item = $0; next }
/^$/ { flush() }
END { finish() }
