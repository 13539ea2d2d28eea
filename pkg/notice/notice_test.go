package notice_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/xmtp-selfhosted/backend/pkg/config"
	"github.com/xmtp-selfhosted/backend/pkg/notice"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

func example() notice.Notice {
	return notice.Notice{
		Topic: topic.Topic("\x00sixteen bytes..."), SequenceID: 1 << 60, Previous: 1<<60 - 1,
		Lineage: notice.Lineage{SystemIdentifier: -1, Timeline: 1 << 30}, Trace: notice.Trace{24: 1}, Envelope: []byte("envelope"),
	}
}

func TestWireFormKeepsEveryField(t *testing.T) {
	want := example()
	wire := notice.Append(nil, &want)
	require.LessOrEqual(t, len(wire), notice.HeaderLength+len(want.Envelope))
	got, err := notice.Parse(wire)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestParseRefusesWhatIsNoNotice(t *testing.T) {
	good := example()
	wire := notice.Append(nil, &good)
	for length := range len(wire) - len(good.Envelope) {
		_, err := notice.Parse(wire[:length])
		require.ErrorIs(t, err, notice.ErrMalformed, "cut to %d bytes", length)
	}
	for name, change := range map[string]func(*notice.Notice){
		"sequence id below previous": func(n *notice.Notice) { n.SequenceID = n.Previous },
		"negative previous":          func(n *notice.Notice) { n.Previous = -1 },
		"no topic":                   func(n *notice.Notice) { n.Topic = "" },
		"unknown kind":               func(n *notice.Notice) { n.Topic = "\x09sixteen bytes..." },
	} {
		t.Run(name, func(t *testing.T) {
			bad := example()
			change(&bad)
			_, err := notice.Parse(notice.Append(nil, &bad))
			require.ErrorIs(t, err, notice.ErrMalformed)
		})
	}
	wire[0]++
	_, err := notice.Parse(wire)
	require.ErrorIs(t, err, notice.ErrMalformed, "another version")
}

func FuzzParse(f *testing.F) {
	good := example()
	f.Add(notice.Append(nil, &good))
	f.Fuzz(func(t *testing.T, wire []byte) {
		n, err := notice.Parse(wire)
		if err == nil {
			require.Equal(t, wire, notice.Append(nil, &n))
		}
	})
}

func TestConfigNamesWhatIsWrong(t *testing.T) {
	good := map[string]string{"XMTP_NATS_URL": "nats://a:4222, tls://b:4222", "XMTP_IDENTIFIER": "org.example"}
	_, err := config.LoadFrom[notice.Config](good)
	require.NoError(t, err)
	for variable, value := range map[string]string{
		"XMTP_NATS_URL": "http://secret@a", "XMTP_IDENTIFIER": string(make([]byte, 257)), "XMTP_NOTICE_INLINE_BYTES": "-1",
		"XMTP_NOTICE_QUEUE_BYTES": "0", "XMTP_NATS_CONNECT_TIMEOUT": "0s", "XMTP_NATS_RECONNECT_WAIT": "-1s", "XMTP_NATS_WRITE_TIMEOUT": "1us",
	} {
		bad := map[string]string{"XMTP_NATS_URL": good["XMTP_NATS_URL"], "XMTP_IDENTIFIER": good["XMTP_IDENTIFIER"]}
		bad[variable] = value
		_, err := config.LoadFrom[notice.Config](bad)
		require.ErrorContains(t, err, variable)
		require.NotContains(t, err.Error(), "secret")
	}
}
