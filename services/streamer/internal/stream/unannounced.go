package stream

import (
	"github.com/xmtp-selfhosted/backend/pkg/store"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
)

// unannounced are envelopes that the sweep found before their notice. Most notices
// are only on their way then: what is still there after another sweep was missed.
type unannounced struct {
	found, missing map[topic.Topic]store.SweepRow
}

// add takes what a sweep found.
func (u *unannounced) add(row store.SweepRow) {
	if u.found == nil {
		u.found = map[topic.Topic]store.SweepRow{}
	}
	row.Envelopes += u.found[row.Topic].Envelopes
	u.found[row.Topic] = row
}

// heard forgets what a notice announced, be it late.
func (u *unannounced) heard(name topic.Topic, id topic.SequenceID) {
	for _, rows := range []map[topic.Topic]store.SweepRow{u.found, u.missing} {
		if row, ok := rows[name]; ok && row.SequenceID <= id {
			delete(rows, name)
		}
	}
}

// endSweep returns how many envelopes of the sweep before nothing announced since.
func (u *unannounced) endSweep() (envelopes int64) {
	for _, row := range u.missing {
		envelopes += row.Envelopes
	}
	u.found, u.missing = nil, u.found
	return envelopes
}
