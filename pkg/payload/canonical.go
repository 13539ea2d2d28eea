package payload

import (
	"google.golang.org/protobuf/encoding/protowire"
)

// canonicalGroupMessage reports whether raw is, byte for byte, the canonical
// encoding of an envelope that holds a group message, and returns the message's
// data. It saves the decoding and encoding of what is already in its final
// form; anything it does not recognize takes the general way.
func canonicalGroupMessage(raw []byte) (data []byte, ok bool) {
	const envelopeGroupMessage, messageData, messageSenderHMAC, messageShouldPush = 1, 1, 2, 3
	message, rest, ok := takeBytes(raw, envelopeGroupMessage)
	if !ok || len(rest) != 0 {
		return nil, false
	}
	data, rest, ok = takeBytes(message, messageData)
	if !ok || len(data) == 0 {
		return nil, false
	}
	if hmac, after, ok := takeBytes(rest, messageSenderHMAC); ok && len(hmac) > 0 {
		rest = after
	}
	if len(rest) == 2 && rest[0] == byte(protowire.EncodeTag(messageShouldPush, protowire.VarintType)) && rest[1] == 1 {
		rest = nil
	}
	return data, len(rest) == 0
}

// takeBytes takes a length-delimited field with a minimal length prefix and a
// field number below 16 from the front.
func takeBytes(from []byte, number protowire.Number) (value, rest []byte, ok bool) {
	if len(from) == 0 || from[0] != byte(protowire.EncodeTag(number, protowire.BytesType)) {
		return nil, nil, false
	}
	length, n := protowire.ConsumeVarint(from[1:])
	if n < 0 || n != protowire.SizeVarint(length) || length > uint64(len(from)-1-n) {
		return nil, nil, false
	}
	value = from[1+n:]
	return value[:length], value[length:], true
}
