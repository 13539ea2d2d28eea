package stream

import (
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
	"github.com/xmtp-selfhosted/backend/pkg/limit"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/pkg/wire"
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

// decodeRequest reads a SubscribeRequest. As in every protobuf decoder the last
// member of the oneof counts, and a repeated one is merged.
func decodeRequest(message []byte, limits limit.Config) (request, error) {
	var r request
	m := wire.Read(message)
	for m.Next() {
		number := m.Number()
		if !m.IsBytes(number) || number < requestUpdate || number > requestPong {
			continue
		}
		if number != r.which {
			r = request{which: number}
		}
		var err error
		if number == requestUpdate {
			err = decodeUpdate(&r.update, m.Bytes(), limits)
		} else {
			err = onlyVarint(m.Bytes(), &r.nonce)
		}
		if err != nil {
			return r, err
		}
	}
	return r, m.Err()
}

func decodeUpdate(u *delivery.Update, message []byte, limits limit.Config) error {
	m := wire.Read(message)
	for m.Next() {
		switch {
		case m.IsVarint(updateID):
			u.ID = m.Varint()
		case m.IsBytes(updateAdds):
			if len(u.Adds) == int(limits.MaxUpdateAdds) {
				return fault.Invalidf(fault.NoReason, "the update adds more topics than expected, at most %d", limits.MaxUpdateAdds)
			}
			add, err := decodeQuery(m.Bytes())
			if err != nil {
				return err
			}
			u.Adds = append(u.Adds, add)
		case m.IsBytes(updateRemoves):
			if len(u.Removes) == int(limits.MaxUpdateRemoves) {
				return fault.Invalidf(fault.NoReason, "the update removes more topics than expected, at most %d", limits.MaxUpdateRemoves)
			}
			name, err := decodeTopic(m.Bytes())
			if err != nil {
				return err
			}
			u.Removes = append(u.Removes, name)
		}
	}
	return m.Err()
}

// decodeStatic reads a SubscribeStaticRequest.
func decodeStatic(message []byte, limits limit.Config) (delivery.Update, error) {
	u := delivery.Update{Answer: delivery.Started}
	m := wire.Read(message)
	for m.Next() {
		if !m.IsBytes(staticTopics) {
			continue
		}
		if len(u.Adds) == int(limits.MaxStaticTopics) {
			return u, fault.Invalidf(fault.NoReason, "the request names more topics than expected, at most %d", limits.MaxStaticTopics)
		}
		add, err := decodeQuery(m.Bytes())
		if err != nil {
			return u, err
		}
		u.Adds = append(u.Adds, add)
	}
	if err := m.Err(); err != nil {
		return u, err
	}
	if len(u.Adds) == 0 {
		return u, fault.Invalidf(fault.NoReason, "the request names no topic, expected 1 to %d", limits.MaxStaticTopics)
	}
	return u, checkUnique(&u)
}

func decodeQuery(message []byte) (add delivery.Add, err error) {
	var name []byte
	var cursor uint64
	m := wire.Read(message)
	for err == nil && m.Next() {
		switch {
		case m.IsBytes(queryTopic):
			err = onlyBytes(m.Bytes(), &name)
		case m.IsBytes(queryCursor):
			err = onlyVarint(m.Bytes(), &cursor)
		}
	}
	if err == nil {
		err = m.Err()
	}
	if err != nil {
		return add, err
	}
	if add.Topic, err = topic.Parse(name); err != nil {
		return add, err
	}
	add.Cursor, err = topic.ParseCursor(cursor)
	return add, err
}

func decodeTopic(message []byte) (topic.Topic, error) {
	var name []byte
	if err := onlyBytes(message, &name); err != nil {
		return "", err
	}
	return topic.Parse(name)
}

// onlyBytes reads a message whose one field is of bytes.
func onlyBytes(message []byte, value *[]byte) error {
	m := wire.Read(message)
	for m.Next() {
		if m.IsBytes(onlyField) {
			*value = m.Bytes()
		}
	}
	return m.Err()
}

// onlyVarint reads a message whose one field is a number.
func onlyVarint(message []byte, value *uint64) error {
	m := wire.Read(message)
	for m.Next() {
		if m.IsVarint(onlyField) {
			*value = m.Varint()
		}
	}
	return m.Err()
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
