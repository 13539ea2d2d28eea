package mls

// The proposals with a layout of their own. All others, GREASE included, are
// one vector.
const (
	proposalAdd                    = 1
	proposalUpdate                 = 2
	proposalRemove                 = 3
	proposalPreSharedKey           = 4
	proposalReInit                 = 5
	proposalExternalInit           = 6
	proposalGroupContextExtensions = 7
	proposalAppDataUpdate          = 8
	proposalAppEphemeral           = 9
	proposalSelfRemove             = 10
)

// commit reads the content of a commit in the clear.
func (r *reader) commit() {
	outer := r.open("proposals")
	for r.more() {
		at := r.at
		switch tag := r.uint8("proposal tag"); tag {
		case 1:
			r.proposal()
		case 2:
			r.vector("proposal reference")
		default:
			r.fail(at, "the proposal tag is %d, expected 1 (proposal) or 2 (reference)", tag)
		}
	}
	r.close(outer)
	if r.optional("update path") {
		r.updatePath()
	}
}

func (r *reader) updatePath() {
	r.leafNode()
	path := r.open("update path nodes")
	for r.more() {
		r.vector("path encryption key")
		secrets := r.open("encrypted path secrets")
		for r.more() {
			r.vector("KEM output")
			r.vector("encrypted path secret")
		}
		r.close(secrets)
	}
	r.close(path)
}

// proposal reads a proposal in the clear. It checks no signature: an added key
// package is for the members to judge.
func (r *reader) proposal() {
	switch r.uint16("proposal type") {
	case proposalAdd:
		r.keyPackage()
	case proposalUpdate:
		r.leafNode()
	case proposalRemove:
		r.take(4, "removed leaf index")
	case proposalPreSharedKey:
		r.preSharedKey()
	case proposalReInit:
		r.vector("group id of the new group")
		r.uint16("version of the new group")
		r.cipherSuite()
		r.extensions("group extensions", anyExtension)
	case proposalExternalInit:
		r.vector("KEM output")
	case proposalGroupContextExtensions:
		r.extensions("group extensions", anyExtension)
	case proposalAppDataUpdate:
		r.appDataUpdate()
	case proposalAppEphemeral:
		r.uint16("component id")
		r.vector("component data")
	case proposalSelfRemove:
	default:
		r.vector("proposal")
	}
}

func (r *reader) preSharedKey() {
	at := r.at
	switch kind := r.uint8("pre-shared key type"); kind {
	case 1:
		r.vector("pre-shared key id")
	case 2:
		usageAt := r.at
		if usage := r.uint8("resumption usage"); usage < 1 || usage > 3 {
			r.fail(usageAt, "the resumption usage is %d, expected 1, 2 or 3", usage)
		}
		r.vector("pre-shared key group id")
		r.uint64("pre-shared key epoch")
	default:
		r.fail(at, "the pre-shared key type is %d, expected 1 (external) or 2 (resumption)", kind)
	}
	r.vector("pre-shared key nonce")
}

func (r *reader) appDataUpdate() {
	r.uint16("component id")
	at := r.at
	switch operation := r.uint8("app data operation"); operation {
	case 1:
		r.vector("app data update")
	case 2:
	default:
		r.fail(at, "the app data operation is %d, expected 1 (update) or 2 (remove)", operation)
	}
}
