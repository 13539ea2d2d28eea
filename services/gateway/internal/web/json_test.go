package web

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

func heap() int {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

func list(element string, count int) string {
	return "[" + strings.Repeat(element+",", count-1) + element + "]"
}

// What is taken from the budget covers what decoding holds, for the texts that cost
// the most for their length.
func TestAJSONTextCostsNoMoreThanIsCounted(t *testing.T) {
	const many = 50_000
	query := (&backendv1.QueryRequest{}).ProtoReflect().Type()
	update := (&backendv1.SubscribeRequest{}).ProtoReflect().Type()
	publish := (&backendv1.PublishRequest{}).ProtoReflect().Type()
	for name, c := range map[string]struct {
		of   protoreflect.MessageType
		text string
	}{
		"empty objects":         {query, `{"queries":` + list(`{}`, many) + `}`},
		"objects in objects":    {query, `{"queries":` + list(`{"topic":{}}`, many) + `}`},
		"objects with two":      {query, `{"queries":` + list(`{"topic":{},"cursor":{}}`, many) + `}`},
		"objects three deep":    {update, `{"update":{"adds":` + list(`{"topic":{},"cursor":{}}`, many) + `}}`},
		"one byte each":         {query, `{"queries":` + list(`{"topic":{"topic":"AA=="}}`, many) + `}`},
		"envelopes of messages": {publish, `{"envelopes":` + list(`{"groupMessage":{}}`, many) + `}`},
		"one long value":        {publish, `{"envelopes":[{"groupMessage":{"data":"` + strings.Repeat("AAAA", 4*many) + `"}}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			text := []byte(c.text)
			before := heap()
			message := c.of.New().Interface()
			require.NoError(t, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, message))
			encoded, err := proto.Marshal(message)
			require.NoError(t, err)
			held := heap() - before
			counted := 2*len(text) + valuesOf(text)*valueBytes
			require.LessOrEqual(t, held, counted)
			require.Positive(t, held)
			runtime.KeepAlive(encoded)
			runtime.KeepAlive(message)
		})
	}
}

func TestAnAnswerCostsNoMoreAsTextThanIsCounted(t *testing.T) {
	const many = 30_000
	metas := &backendv1.PublishResponse{}
	for range many {
		metas.EnvelopeMetas = append(metas.EnvelopeMetas, &backendv1.EnvelopeMeta{Topic: &backendv1.Topic{Topic: []byte{1}}})
	}
	empty := &backendv1.PublishResponse{}
	for range many {
		empty.EnvelopeMetas = append(empty.EnvelopeMetas, &backendv1.EnvelopeMeta{})
	}
	for name, message := range map[string]proto.Message{
		"envelope metas": metas, "empty ones": empty,
		"one long value": &backendv1.PublishResponse{EnvelopeMetas: []*backendv1.EnvelopeMeta{{Topic: &backendv1.Topic{Topic: make([]byte, 10*many)}}}},
	} {
		t.Run(name, func(t *testing.T) {
			encoded, err := proto.Marshal(message)
			require.NoError(t, err)
			of := message.ProtoReflect().Type()
			before := heap()
			decoded := of.New().Interface()
			require.NoError(t, proto.Unmarshal(encoded, decoded))
			text, err := protojson.Marshal(decoded)
			require.NoError(t, err)
			held := heap() - before
			require.LessOrEqual(t, held, contentCost(len(encoded))+valueCost(of.Descriptor(), encoded)+64<<10)
			runtime.KeepAlive(text)
			runtime.KeepAlive(decoded)
		})
	}
}
