package stream

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/services/streamer/internal/delivery"
)

// Requests are read straight from their bytes. Generated code would make several
// objects of each two bytes of a hostile request before its length is checked.

// Field numbers of the requests.
const (
	requestUpdate = 1
	requestPing   = 2
	requestPong   = 3

	updateID      = 1
	updateAdds    = 2
	updateRemoves = 3

	staticTopics = 1

	queryTopic  = 1
	queryCursor = 2

	onlyField = 1 // of Topic, Cursor, Ping and Pong
)

// request is a decoded SubscribeRequest. which is the field that is set last, 0
// for none.
type request struct {
	which  protowire.Number
	update delivery.Update
	nonce  uint64
}

var errMalformed = fault.Invalidf(fault.NoReason, "the request is not a valid protobuf message of its type")

// fields calls visit for each field: bytes for a length-delimited one, number
// for a varint. Other wire types are unknown fields and skipped.
func fields(message []byte, visit func(number protowire.Number, bytes []byte, varint uint64, isBytes bool) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return errMalformed
		}
		message = message[n:]
		var err error
		switch kind {
		case protowire.BytesType:
			var value []byte
			if value, n = protowire.ConsumeBytes(message); n >= 0 {
				err = visit(number, value, 0, true)
			}
		case protowire.VarintType:
			var value uint64
			if value, n = protowire.ConsumeVarint(message); n >= 0 {
				err = visit(number, nil, value, false)
			}
		default:
			n = protowire.ConsumeFieldValue(number, kind, message)
		}
		if n < 0 {
			return errMalformed
		}
		if err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}

// decodeRequest reads a SubscribeRequest. As in every protobuf decoder the last
// member of the oneof counts, and a repeated one is merged.
func decodeRequest(message []byte, limits limit.Config) (request, error) {
	var r request
	err := fields(message, func(number protowire.Number, bytes []byte, _ uint64, isBytes bool) error {
		if !isBytes || number < requestUpdate || number > requestPong {
			return nil
		}
		if number != r.which {
			r = request{which: number}
		}
		if number == requestUpdate {
			return decodeUpdate(&r.update, bytes, limits)
		}
		return fields(bytes, func(number protowire.Number, _ []byte, varint uint64, isBytes bool) error {
			if number == onlyField && !isBytes {
				r.nonce = varint
			}
			return nil
		})
	})
	return r, err
}

func decodeUpdate(u *delivery.Update, message []byte, limits limit.Config) error {
	return fields(message, func(number protowire.Number, bytes []byte, varint uint64, isBytes bool) error {
		switch {
		case number == updateID && !isBytes:
			u.ID = varint
		case number == updateAdds && isBytes:
			if len(u.Adds) == int(limits.MaxUpdateAdds) {
				return fault.Invalidf(fault.NoReason, "the update adds more topics than expected, at most %d", limits.MaxUpdateAdds)
			}
			add, err := decodeQuery(bytes)
			u.Adds = append(u.Adds, add)
			return err
		case number == updateRemoves && isBytes:
			if len(u.Removes) == int(limits.MaxUpdateRemoves) {
				return fault.Invalidf(fault.NoReason, "the update removes more topics than expected, at most %d", limits.MaxUpdateRemoves)
			}
			name, err := decodeTopic(bytes)
			u.Removes = append(u.Removes, name)
			return err
		}
		return nil
	})
}

// decodeStatic reads a SubscribeStaticRequest.
func decodeStatic(message []byte, limits limit.Config) (delivery.Update, error) {
	u := delivery.Update{Answer: delivery.Started}
	err := fields(message, func(number protowire.Number, bytes []byte, _ uint64, isBytes bool) error {
		if number != staticTopics || !isBytes {
			return nil
		}
		if len(u.Adds) == int(limits.MaxStaticTopics) {
			return fault.Invalidf(fault.NoReason, "the request names more topics than expected, at most %d", limits.MaxStaticTopics)
		}
		add, err := decodeQuery(bytes)
		u.Adds = append(u.Adds, add)
		return err
	})
	if err == nil && len(u.Adds) == 0 {
		err = fault.Invalidf(fault.NoReason, "the request names no topic, expected 1 to %d", limits.MaxStaticTopics)
	}
	if err == nil {
		err = checkUnique(&u)
	}
	return u, err
}

func decodeQuery(message []byte) (delivery.Add, error) {
	var name []byte
	var cursor uint64
	err := fields(message, func(number protowire.Number, bytes []byte, _ uint64, isBytes bool) error {
		switch {
		case !isBytes:
		case number == queryTopic:
			return topicBytes(bytes, &name)
		case number == queryCursor:
			return fields(bytes, func(number protowire.Number, _ []byte, varint uint64, isBytes bool) error {
				if number == onlyField && !isBytes {
					cursor = varint
				}
				return nil
			})
		}
		return nil
	})
	if err != nil {
		return delivery.Add{}, err
	}
	var add delivery.Add
	if add.Topic, err = topic.Parse(name); err != nil {
		return add, err
	}
	add.Cursor, err = topic.ParseCursor(cursor)
	return add, err
}

func decodeTopic(message []byte) (topic.Topic, error) {
	var name []byte
	if err := topicBytes(message, &name); err != nil {
		return "", err
	}
	return topic.Parse(name)
}

func topicBytes(message []byte, name *[]byte) error {
	return fields(message, func(number protowire.Number, bytes []byte, _ uint64, isBytes bool) error {
		if number == onlyField && isBytes {
			*name = bytes
		}
		return nil
	})
}

// checkUnique refuses a topic that occurs twice in an update (API-091).
func checkUnique(u *delivery.Update) error {
	if len(u.Adds)+len(u.Removes) < 2 {
		return nil
	}
	seen := make(map[topic.Topic]struct{}, len(u.Adds)+len(u.Removes))
	for _, add := range u.Adds {
		seen[add.Topic] = struct{}{}
	}
	for _, name := range u.Removes {
		seen[name] = struct{}{}
	}
	if len(seen) < len(u.Adds)+len(u.Removes) {
		return fault.Invalidf(fault.NoReason, "a topic is named twice, expected each once in all adds and removes")
	}
	return nil
}
