package front

import "golang.org/x/net/http2"

// ackFilter removes the first acknowledgement of settings from a client's bytes:
// that of the settings that were sent in the server's place.
type ackFilter struct {
	rest int // bytes of the passing frame still to come
	held []byte
	done bool
}

// filter returns what of the bytes is for the server. A frame header that is not
// whole yet is held back.
func (a *ackFilter) filter(in []byte) []byte {
	var out []byte
	in = append(a.held, in...)
	a.held = nil
	for len(in) > 0 {
		if a.rest > 0 {
			n := min(a.rest, len(in))
			out = append(out, in[:n]...)
			in = in[n:]
			a.rest -= n
			continue
		}
		if len(in) < frameHeaderBytes {
			a.held = append([]byte(nil), in...)
			break
		}
		if in[3] == byte(http2.FrameSettings) && in[4]&byte(http2.FlagSettingsAck) != 0 {
			a.done = true
			return append(out, in[frameHeaderBytes:]...)
		}
		a.rest = frameHeaderBytes + frameLength(in)
	}
	return out
}
