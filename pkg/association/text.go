package association

import (
	"encoding/hex"
	"time"

	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
)

// SignatureText is what the signatures of an update sign. The signatures
// themselves may be missing, so that the text can be used to make them. A
// failure in the structure of an action is as in Prepare.
func SignatureText(update *associations.IdentityUpdate) (string, error) {
	u := &Update{inboxID: update.GetInboxId(), timestampNS: update.GetClientTimestampNs()}
	for i, wire := range update.GetActions() {
		a, _, err := readAction(i, wire)
		if err != nil {
			return "", err
		}
		u.actions = append(u.actions, a)
	}
	return string(u.text()), nil
}

// SignatureText is what every signature of the update signs.
func (u *Update) SignatureText() string { return string(u.text()) }

const (
	textHeader = "XMTP : Authenticate to inbox\n\nInbox ID: "
	textTime   = "\nCurrent time: "
	textFooter = "\n\nFor more info: https://xmtp.org/signatures"
	timeLayout = "2006-01-02T15:04:05Z"
)

func (u *Update) text() []byte {
	text := make([]byte, 0, 256+len(u.inboxID)+160*len(u.actions))
	text = append(text, textHeader...)
	text = append(text, u.inboxID...)
	text = append(text, textTime...)
	// Times from 2^63 ns on are read as negative, as the clients do.
	text = time.Unix(0, int64(u.timestampNS)).UTC().AppendFormat(text, timeLayout)
	text = append(text, "\n\n"...)
	for i := range u.actions {
		if i > 0 {
			text = append(text, '\n')
		}
		text = u.actions[i].appendText(text)
	}
	return append(text, textFooter...)
}

func (a *action) appendText(text []byte) []byte {
	text = append(text, a.phrase()...)
	if a.identifier.Kind == Ethereum {
		text = append(text, a.identifier.Value...)
	} else {
		text = hex.AppendEncode(text, []byte(a.identifier.Value))
	}
	return append(text, ')')
}

// phrase is the text of an action up to its identifier.
func (a *action) phrase() string {
	switch a.kind {
	case createInbox:
		return "- Create inbox\n  (Owner: "
	case changeRecovery:
		return "- Change inbox recovery address\n  (Address: "
	case addAssociation:
		switch a.identifier.Kind {
		case Installation:
			return "- Grant messaging access to app\n  (ID: "
		case Passkey:
			return "- Link passkey to inbox\n  (Passkey: "
		default:
			return "- Link address to inbox\n  (Address: "
		}
	default: // revokeAssociation
		switch a.identifier.Kind {
		case Installation:
			return "- Revoke messaging access from app\n  (ID: "
		case Passkey:
			return "- Unlink passkey from inbox\n  (Passkey: "
		default:
			return "- Unlink address from inbox\n  (Address: "
		}
	}
}
