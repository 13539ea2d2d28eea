package attack

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"math/rand/v2"
	"strconv"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// Paths of the methods that are attacked.
const (
	publish   = "/xmtp.backend.v1.PublishService/Publish"
	query     = "/xmtp.backend.v1.QueryService/Query"
	subscribe = "/xmtp.backend.v1.SubscriptionService/Subscribe"
	static    = "/xmtp.backend.v1.SubscriptionService/SubscribeStatic"
)

// The content types of calls by HTTP/1.1.
const (
	web    = "application/grpc-web+proto"
	asJSON = "application/json"
)

// largestMessage is what the limits allow to a request (XMTP_MAX_REQUEST_BYTES).
const largestMessage = 25 << 20

// header is that of a native call.
func (c *crowd) header(path string, more ...hpack.HeaderField) []hpack.HeaderField {
	scheme := "http"
	if c.target.TLS {
		scheme = "https"
	}
	return append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: scheme}, {Name: ":path", Value: path}, {Name: ":authority", Value: c.target.Address},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}, more...)
}

// prefix is what stands in front of a message of a length.
func prefix(length int, compressed bool) []byte {
	first := make([]byte, 5)
	if compressed {
		first[0] = 1
	}
	binary.BigEndian.PutUint32(first[1:], uint32(length))
	return first
}

func framed(message []byte) []byte { return append(prefix(len(message), false), message...) }

func encoded(m proto.Message) []byte {
	bytes, err := proto.Marshal(m)
	if err != nil {
		panic(err) // a message of our own encodes
	}
	return bytes
}

// page asks for as much as a page holds.
func (c *crowd) page() []byte {
	return encoded(&backendv1.QueryRequest{Limit: 24, Queries: []*backendv1.TopicQuery{{Topic: &backendv1.Topic{Topic: []byte(c.target.Topic)}}}})
}

// someTopics are topics that nobody has used.
func someTopics(n int) []*backendv1.TopicQuery {
	queries := make([]*backendv1.TopicQuery, n)
	for i := range queries {
		name := make([]byte, 1+topic.GroupIDLength)
		binary.BigEndian.PutUint64(name[1:], rand.Uint64())
		binary.BigEndian.PutUint64(name[9:], rand.Uint64())
		queries[i] = &backendv1.TopicQuery{Topic: &backendv1.Topic{Topic: name}}
	}
	return queries
}

func zipped(content []byte) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(content) // to memory
	_ = w.Close()
	return b.Bytes()
}

// codeOf is a status code as metrics name it.
func codeOf(number string) string {
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return "no number"
	}
	return codes.Code(n).String()
}
