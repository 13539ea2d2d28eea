package mls

// leafNode is a member's entry in the ratchet tree. Its slices are parts of the
// input.
type leafNode struct {
	encryptionKey []byte
	signatureKey  []byte

	credentialType uint16
	identity       []byte

	// capabilities is the list of supported extension types, two bytes each.
	capabilities []byte

	source    uint8
	notBefore uint64 // Unix seconds, with sourceKeyPackage
	notAfter  uint64 // Unix seconds, with sourceKeyPackage

	signature []byte
	// signed is everything before the signature: the content of LeafNodeTBS for
	// a leaf of a key package.
	signed []byte
}

// The places a leaf node can come from.
const (
	sourceKeyPackage = 1
	sourceUpdate     = 2
	sourceCommit     = 3
)

func (r *reader) leafNode() (leaf leafNode) {
	start := r.at
	leaf.encryptionKey = r.vector("leaf encryption key")
	leaf.signatureKey = r.vector("leaf signature key")
	leaf.credentialType = r.uint16("credential type")
	leaf.identity = r.vector("credential")
	r.codes("capability versions")
	r.codes("capability cipher suites")
	leaf.capabilities = r.codes("capability extensions")
	r.codes("capability proposals")
	r.codes("capability credentials")

	sourceAt := r.at
	leaf.source = r.uint8("leaf node source")
	switch leaf.source {
	case sourceKeyPackage:
		leaf.notBefore = r.uint64("lifetime start")
		leaf.notAfter = r.uint64("lifetime end")
	case sourceUpdate:
	case sourceCommit:
		r.vector("parent hash")
	default:
		r.fail(sourceAt, "the leaf node source is %d, expected 1 (key package), 2 (update) or 3 (commit)", leaf.source)
	}
	r.extensions("leaf extensions", allowedInLeaf)
	if r.err == nil {
		leaf.signed = r.data[start:r.at]
	}
	leaf.signature = r.vector("leaf signature")
	return leaf
}

// codes reads a vector of two-byte code points.
func (r *reader) codes(what string) []byte {
	start := r.at
	list := r.vector(what)
	if len(list)%2 != 0 {
		r.fail(start, "the %s take %d bytes, expected two for each", what, len(list))
	}
	return list
}

// anyExtension is for lists where every type may appear.
func anyExtension(uint16) bool { return true }

// extensions reads a list of extensions and returns its content. A type that
// is not allowed or appears twice is a failure, and so is data that is not
// exactly what a type with a known layout holds: left-over bytes in there are
// signed by some clients and not by others.
func (r *reader) extensions(list string, allowed func(uint16) bool) extensionList {
	outer := r.open(list)
	start, count := r.at, 0
	for ; r.more(); count++ {
		at := r.at
		kind := r.uint16("extension type")
		if !allowed(kind) {
			r.fail(at, "the extension type 0x%04x has no place among the %s", kind, list)
		}
		r.extensionData(kind)
	}
	if r.err != nil {
		return nil
	}
	content := extensionList(r.data[start:r.end])
	r.close(outer)
	if repeatsType(content, count) {
		r.fail(start, "two of the %s have the same type", list)
	}
	return content
}

func (r *reader) extensionData(kind uint16) {
	switch kind {
	case extensionApplicationID, extensionAppDataDictionary, extensionLastResort:
	default:
		r.vector("extension data")
		return
	}
	outer := r.open("extension data")
	switch kind {
	case extensionApplicationID:
		r.vector("application id")
	case extensionAppDataDictionary:
		r.appDataDictionary()
	}
	if r.more() {
		r.fail(r.at, "the data of the extension of type 0x%04x has %d bytes too many", kind, r.end-r.at)
	}
	r.close(outer)
}

// appDataDictionary reads components in strictly ascending order.
func (r *reader) appDataDictionary() {
	outer := r.open("app data dictionary")
	for previous := -1; r.more(); {
		at := r.at
		component := int(r.uint16("component id"))
		if component <= previous {
			r.fail(at, "the component ids of the app data dictionary do not ascend")
		}
		previous = component
		r.vector("component data")
	}
	r.close(outer)
}

// extensionList walks a list that extensions has checked.
type extensionList []byte

// next returns the type of the first extension and the list after it.
func (l extensionList) next() (kind uint16, rest extensionList) {
	r := newReader("extension list", l)
	kind = r.uint16("type")
	r.vector("data")
	if r.err != nil {
		return kind, nil
	}
	return kind, l[r.at:]
}

// repeatsType says whether two of a list's count extensions have the same type.
// Its work grows with the list, never with the square of it.
func repeatsType(list extensionList, count int) bool {
	const few = 8 // up to here, comparing is cheaper than clearing a codeSet
	if count > few {
		return repeatsTypeInLong(list)
	}
	for len(list) > 0 {
		var kind uint16
		kind, list = list.next()
		for rest := list; len(rest) > 0; {
			var other uint16
			if other, rest = rest.next(); other == kind {
				return true
			}
		}
	}
	return false
}

func repeatsTypeInLong(list extensionList) bool {
	var seen codeSet
	for len(list) > 0 {
		var kind uint16
		if kind, list = list.next(); seen.add(kind) {
			return true
		}
	}
	return false
}

// keyPackage reads the structure of a key package, as uploaded or as added by
// a proposal.
func (r *reader) keyPackage() (k KeyPackage) {
	start := r.at
	k.version = r.uint16("key package version")
	k.suite = r.cipherSuite()
	k.initKey = r.vector("init key")
	k.leaf = r.leafNode()
	k.extensions = r.extensions("key package extensions", anyExtension)
	if r.err == nil {
		k.signed = r.data[start:r.at]
	}
	k.signature = r.vector("key package signature")
	return k
}

func (r *reader) cipherSuite() uint16 {
	at := r.at
	suite := r.uint16("cipher suite")
	if !knownSuite(suite) {
		r.fail(at, "the cipher suite 0x%04x does not exist", suite)
	}
	return suite
}
