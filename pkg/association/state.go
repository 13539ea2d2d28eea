package association

import (
	"maps"
	"slices"

	"github.com/xmtp-selfhosted/backend/pkg/fault"
)

// State is what an inbox looks like after some updates. The zero value is an
// inbox that does not exist yet. A State never changes once it has been
// returned, so it is safe for concurrent use and worth caching.
type State struct {
	inboxID  string // as CreateInbox derives it; empty before
	creator  Identifier
	recovery Identifier
	members  map[Identifier]member
	// children lists the installations that each identifier added, those added
	// again by another or removed since included: a removal must not scan all
	// members, of which a hostile inbox may have very many.
	children map[Identifier][]Identifier
	// seen holds what the signatures of all updates count as; none may serve twice.
	seen map[string]struct{}
}

type member struct {
	addedBy Identifier // zero for the one who created the inbox
	chain   chainID    // of the signature that brought the member in
}

// InboxID is the id in lower-case hex, or empty if the inbox does not exist.
func (s *State) InboxID() string { return s.inboxID }

// RecoveryIdentifier is the identifier that may revoke members and change the
// recovery identifier. It need not be a member, nor anything that can sign.
func (s *State) RecoveryIdentifier() Identifier { return s.recovery }

// Members lists the members, ordered by kind and value.
func (s *State) Members() []Identifier {
	return slices.SortedFunc(maps.Keys(s.members), compare)
}

// IsMember says whether the identifier is a member.
func (s *State) IsMember(identifier Identifier) bool {
	_, ok := s.members[identifier]
	return ok
}

// Apply returns the state after an update. An update that does not fit the
// state is Invalid with reason InvalidIdentityUpdate. s never changes.
func (s *State) Apply(v Verified) (*State, error) {
	next := s.clone()
	if err := next.apply(v); err != nil {
		return nil, err
	}
	return next, nil
}

func (s *State) clone() *State {
	next := &State{
		inboxID:  s.inboxID,
		creator:  s.creator,
		recovery: s.recovery,
		members:  maps.Clone(s.members),
		children: maps.Clone(s.children),
		seen:     maps.Clone(s.seen),
	}
	for parent, list := range next.children {
		next.children[parent] = slices.Clip(list) // so that append copies
	}
	next.init()
	return next
}

// What an entry of the maps takes, with its keys: as measured, rounded up.
const (
	memberBytes = 320
	seenBytes   = 160
)

// bytes is about what the state takes.
func (s *State) bytes() int64 {
	return int64(len(s.members))*memberBytes + int64(len(s.seen))*seenBytes
}

func (s *State) init() {
	if s.members == nil {
		s.members = make(map[Identifier]member)
	}
	if s.children == nil {
		s.children = make(map[Identifier][]Identifier)
	}
	if s.seen == nil {
		s.seen = make(map[string]struct{})
	}
}

// apply changes s; after a failure s is worthless.
func (s *State) apply(v Verified) error {
	if v.inboxID == "" {
		return fault.Errorf(fault.Broken, "an update was applied that was never verified")
	}
	for i := range v.actions {
		a := &v.actions[i]
		if failure := s.applyAction(a, v.proofs[a.signature:], v.stored); failure != "" {
			return fault.Invalidf(fault.InvalidIdentityUpdate, "action %d %s", i, failure)
		}
	}
	if s.inboxID == "" {
		return fault.Invalidf(fault.InvalidIdentityUpdate, "the inbox does not exist, expected an update that creates it")
	}
	if s.inboxID != v.inboxID {
		return fault.Invalidf(fault.InvalidIdentityUpdate, "the update names another inbox than the one it applies to")
	}
	// Only now, so that one signature may serve several actions of an update.
	for i := range v.proofs {
		if used := v.proofs[i].used; used != "" {
			s.seen[used] = struct{}{}
		}
	}
	return nil
}

// applyAction returns what is wrong with the action, or nothing. proofs starts
// with those of the action. A stored action was accepted by older rules, under which
// a signature in another encoding was another signature, and a member could be added
// again.
//
// Which signature kinds an identifier may use needs no check: the kind of the
// signer follows from the kind of the signature, and the signer is compared
// with the identifier.
func (s *State) applyAction(a *action, proofs []proof, stored bool) (failure string) {
	if stored {
		s.settle(a, proofs)
	}
	if a.kind == createInbox {
		return s.create(a, &proofs[0])
	}
	if s.inboxID == "" {
		return "needs an inbox, expected a create-inbox action first"
	}
	for i := range rolesOf[a.kind] {
		if _, used := s.seen[proofs[i].used]; used && !stored {
			return "has a signature that an earlier update used already"
		}
	}
	if a.kind == addAssociation {
		if !stored && s.IsMember(a.identifier) {
			return "adds a member that the inbox has already"
		}
		return s.add(a, &proofs[0], &proofs[1])
	}
	if failure := s.requireRecovery(&proofs[0]); failure != "" {
		return failure
	}
	if a.kind == revokeAssociation {
		s.remove(a.identifier)
	} else {
		s.recovery = a.identifier
	}
	return ""
}

func (s *State) create(a *action, initial *proof) (failure string) {
	switch {
	case s.inboxID != "":
		return "creates an inbox that exists already"
	case initial.signer != a.identifier:
		return "is not signed by the initial identifier it names"
	}
	s.inboxID = InboxID(a.identifier.Text(), a.nonce)
	s.creator, s.recovery = a.identifier, a.identifier
	s.members[a.identifier] = member{chain: initial.chain}
	return ""
}

func (s *State) add(a *action, existing, added *proof) (failure string) {
	if added.signer != a.identifier {
		return "is not signed by the new member it names"
	}
	if added.signer == existing.signer {
		return "is signed by the new member alone, expected an existing member to add it"
	}
	if adder, ok := s.members[existing.signer]; ok {
		if adder.chain != existing.chain {
			return differentChain
		}
	} else if existing.signer != s.recovery {
		return "is signed by no existing member and not by the recovery identifier"
	}
	if existing.signer.Kind == Installation && added.signer.Kind == Installation {
		return "adds an installation by an installation, expected a wallet or a passkey to add it"
	}
	s.members[added.signer] = member{addedBy: existing.signer, chain: added.chain}
	if added.signer.Kind == Installation {
		s.children[existing.signer] = append(s.children[existing.signer], added.signer)
	}
	return ""
}

const differentChain = "is signed on another chain than the one the member was added on"

// requireRecovery returns what keeps a signature from standing for the recovery
// identifier.
func (s *State) requireRecovery(p *proof) (failure string) {
	if m, ok := s.members[p.signer]; ok && m.chain != p.chain {
		return differentChain
	}
	if p.signer != s.recovery {
		return "is not signed by the recovery identifier"
	}
	return ""
}

// remove removes an identifier and the installations it added. The identifier
// need not be a member any more.
func (s *State) remove(identifier Identifier) {
	delete(s.members, identifier)
	for _, child := range s.children[identifier] {
		if m, ok := s.members[child]; ok && m.addedBy == identifier {
			delete(s.members, child)
		}
	}
	delete(s.children, identifier)
}
