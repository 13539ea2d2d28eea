package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/rpc"
	"github.com/xmtp-selfhosted/backend/pkg/testkit"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	"github.com/xmtp-selfhosted/backend/pkg/wire"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// message is an encoded PublishRequest of one envelope, whose ciphertext ends in
// room for a mark. Several of them one after the other are a request of several.
type message struct {
	topic   topic.Topic
	encoded []byte
	at      int
}

// The mark makes each message another one and says when it was sent: the run, a
// number, nanoseconds since the Unix epoch, and a magic number to find it by.
const (
	markerBytes = 32
	magic       = 0x786d747062656e63
)

// newMessages makes one message for each topic.
func newMessages(config Config) ([]message, error) {
	kit := testkit.New(config.Seed ^ uint64(time.Now().UnixNano()))
	count := config.Topics
	if config.Workload == ManyTopics {
		count *= config.Streams
	}
	messages := make([]message, count)
	for i := range messages {
		group := kit.Group()
		envelope := kit.GroupMessage(group, config.Size)
		data := envelope.GetGroupMessage().GetData()
		tail := data[len(data)-markerBytes:]
		encoded, err := proto.Marshal(&backendv1.PublishRequest{Envelopes: []*backendv1.ClientEnvelope{envelope}})
		if err != nil {
			return nil, err
		}
		at := bytes.Index(encoded, tail)
		if at < 0 {
			return nil, errors.New("the ciphertext is not in the request")
		}
		messages[i] = message{topic: group.Topic(), encoded: encoded, at: at}
	}
	return messages, nil
}

// request is a publish request that nobody made before.
func (r *run) request(c *caller, envelopes int) []byte {
	now := uint64(time.Now().UnixNano())
	var request []byte
	for range envelopes {
		m := &r.messages[c.pick(len(r.messages))]
		request = r.append(request, m, now)
	}
	return request
}

func (r *run) append(request []byte, m *message, now uint64) []byte {
	at := len(request) + m.at
	request = append(request, m.encoded...)
	mark := request[at : at+markerBytes]
	binary.BigEndian.PutUint64(mark, r.config.Seed)
	binary.BigEndian.PutUint64(mark[8:], r.made.Add(1))
	binary.BigEndian.PutUint64(mark[16:], now)
	binary.BigEndian.PutUint64(mark[24:], magic)
	return request
}

// Full method names.
const (
	publishMethod     = "/xmtp.backend.v1.PublishService/Publish"
	queryMethod       = "/xmtp.backend.v1.QueryService/Query"
	newestMethod      = "/xmtp.backend.v1.QueryService/QueryNewest"
	inboxMethod       = "/xmtp.backend.v1.IdentityService/GetInboxIds"
	staticMethod      = "/xmtp.backend.v1.SubscriptionService/SubscribeStatic"
	callTimeout       = 30 * time.Second
	preparationLength = 100 // envelopes in one request of a preparation
)

// invoke makes a call with raw bytes and throws the answer away.
func invoke(ctx context.Context, conn *grpc.ClientConn, method string, request []byte) (answered int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var response rpc.Frame
	if err := conn.Invoke(ctx, method, rpc.FrameOf(request), &response); err != nil {
		return 0, err
	}
	answered = response.Data.Len()
	response.Free()
	return answered, nil
}

func (r *run) publishOnce(ctx context.Context, c *caller) (int, error) {
	_, err := invoke(ctx, c.publishConn, publishMethod, r.request(c, r.config.PerRequest))
	return r.config.PerRequest, err
}

// fill gives each topic the configured rows.
func (r *run) fill(ctx context.Context) error {
	total := len(r.messages) * r.config.Rows
	done := 0
	request := []byte(nil)
	envelopes := 0
	flush := func() error {
		if envelopes == 0 {
			return nil
		}
		_, err := invoke(ctx, r.publishConns[0], publishMethod, request)
		done += envelopes
		request, envelopes = nil, 0
		if done%(total/10+1) < preparationLength {
			r.tell(Point{What: fmt.Sprintf("storing what is read later: %d of %d envelopes", done, total)})
		}
		return err
	}
	perRequest := max(1, min(preparationLength, (4<<20)/r.config.Size))
	for i := range r.messages {
		for range r.config.Rows {
			request = r.append(request, &r.messages[i], uint64(time.Now().UnixNano()))
			if envelopes++; envelopes == perRequest {
				if err := flush(); err != nil {
					return fmt.Errorf("store what is read later: %w", err)
				}
			}
		}
	}
	return flush()
}

// envelopesField is the number of the envelopes in PublishRequest and in Messages.
const envelopesField = 1

// countEnvelopes counts the envelopes of either message without decoding them.
func countEnvelopes(encoded []byte) (count int) {
	for m := wire.Read(encoded); m.Next(); {
		if m.IsBytes(envelopesField) {
			count++
		}
	}
	return count
}

// sentTimes calls found with the time in each mark of a frame.
func sentTimes(frame []byte, found func(sent time.Time)) {
	var pattern [8]byte
	binary.BigEndian.PutUint64(pattern[:], magic)
	for {
		at := bytes.Index(frame, pattern[:])
		if at < 0 {
			return
		}
		if at >= 8 {
			found(time.Unix(0, int64(binary.BigEndian.Uint64(frame[at-8:]))))
		}
		frame = frame[at+8:]
	}
}
