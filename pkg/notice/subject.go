package notice

import (
	"hash/fnv"
	"strconv"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// Shards is the number of subjects that notices are spread over by topic. It is
// part of the wire: publishers and streamers must agree.
const Shards = 256

// shardOf is part of the wire, too: FNV-1a of the topic bytes, folded to a byte.
func shardOf(name topic.Topic) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	sum := h.Sum32()
	return int(byte(sum>>24) ^ byte(sum>>16) ^ byte(sum>>8) ^ byte(sum))
}

// subjectPrefix is the subject without its shard: xmtp.<identifier>.notice.
// NATS gives '.', '*', '>' and white space a meaning in subjects, so every byte
// of the identifier other than a letter, a digit, '-' and '_' is written as '='
// and two upper-case hex digits. Different identifiers stay different.
func subjectPrefix(identifier string) string {
	const digits = "0123456789ABCDEF"
	escaped := make([]byte, 0, len(identifier)+16)
	for i := range len(identifier) {
		c := identifier[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			escaped = append(escaped, c)
		default:
			escaped = append(escaped, '=', digits[c>>4], digits[c&15])
		}
	}
	return "xmtp." + string(escaped) + ".notice."
}

// subjects are all shards of an identifier, by shard.
func subjects(identifier string) []string {
	prefix := subjectPrefix(identifier)
	all := make([]string, Shards)
	for shard := range all {
		all[shard] = prefix + strconv.Itoa(shard)
	}
	return all
}
