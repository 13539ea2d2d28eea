// Package recording reads the session that published clients recorded: 386
// payloads in the order and the request grouping in which they were sent.
package recording

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"

	"google.golang.org/protobuf/proto"

	"github.com/xmtp-selfhosted/backend/pkg/testdata"
	"github.com/xmtp-selfhosted/backend/pkg/topic"
	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/identity/associations"
	"github.com/xmtp-selfhosted/backend/proto/gen/xmtp/mls/message_contents"
)

// Payload is one recorded envelope and what is known of it.
type Payload struct {
	// ID names the payload in the manifest.
	ID string
	// Step is what the recorded driver was doing.
	Step string
	// Request numbers the request that carried the payload; equal numbers came
	// together.
	Request int
	Topic   topic.Topic
	// IsCommitOrProposal is the flag that the backend has to derive.
	IsCommitOrProposal bool
	// NeedsChain is set on updates with a contract-wallet signature: a chain that
	// accepts it has to be at hand.
	NeedsChain bool
	Envelope   *backendv1.ClientEnvelope
	// Expect is the manifest's own account of the payload.
	Expect json.RawMessage
}

// Session is the recording in order.
type Session struct{ Payloads []Payload }

// Requests returns the payloads grouped as they were sent.
func (s *Session) Requests() [][]Payload {
	var requests [][]Payload
	for i, p := range s.Payloads {
		if i == 0 || p.Request != s.Payloads[i-1].Request {
			requests = append(requests, nil)
		}
		last := len(requests) - 1
		requests[last] = append(requests[last], p)
	}
	return requests
}

const folder = "real-client"

type manifestEntry struct {
	ID     string          `json:"id"`
	Kind   string          `json:"kind"`
	Step   string          `json:"step"`
	File   string          `json:"file"`
	Expect json.RawMessage `json:"expect"`
}

type scenarioEntry struct {
	ID      string `json:"id"`
	Request int    `json:"request"`
	Topic   string `json:"topic"`
}

// Load reads the recording that is built into the program.
func Load() (*Session, error) {
	raw, err := fs.ReadFile(testdata.RealClient, path.Join(folder, "manifest.json"))
	if err != nil {
		return nil, fmt.Errorf("read the manifest of the recording: %w", err)
	}
	var manifest []manifestEntry
	if err := json.Unmarshal(raw, &manifest); err != nil {
		return nil, fmt.Errorf("read the manifest of the recording: %w", err)
	}
	byID := make(map[string]manifestEntry, len(manifest))
	for _, entry := range manifest {
		byID[entry.ID] = entry
	}
	raw, err = fs.ReadFile(testdata.RealClient, path.Join(folder, "scenario.jsonl"))
	if err != nil {
		return nil, fmt.Errorf("read the scenario of the recording: %w", err)
	}
	session := &Session{}
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for lines.Scan() {
		var line scenarioEntry
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("read the scenario of the recording: %w", err)
		}
		p, err := load(byID[line.ID], line)
		if err != nil {
			return nil, fmt.Errorf("read %s of the recording: %w", line.ID, err)
		}
		session.Payloads = append(session.Payloads, p)
	}
	return session, lines.Err()
}

var kinds = map[string]topic.Kind{
	"group_message": topic.GroupMessage, "welcome": topic.Welcome, "identity_update": topic.IdentityUpdate,
	"key_package": topic.KeyPackage, "commit_log_entry": topic.CommitLog,
}

func load(entry manifestEntry, line scenarioEntry) (Payload, error) {
	content, err := fs.ReadFile(testdata.RealClient, path.Join(folder, entry.File))
	if err != nil {
		return Payload{}, err
	}
	identifier, err := hex.DecodeString(line.Topic)
	if err != nil {
		return Payload{}, err
	}
	name, err := topic.New(kinds[entry.Kind], identifier)
	if err != nil {
		return Payload{}, err
	}
	var facts expectation
	if err := json.Unmarshal(entry.Expect, &facts); err != nil {
		return Payload{}, err
	}
	client, err := facts.envelope(entry.Kind, content)
	if err != nil {
		return Payload{}, err
	}
	return Payload{
		ID: entry.ID, Step: entry.Step, Request: line.Request, Topic: name,
		IsCommitOrProposal: facts.ContentType == "commit" || facts.ContentType == "proposal",
		NeedsChain:         facts.NeedsChain, Envelope: client, Expect: entry.Expect,
	}, nil
}

// expectation is what the payload's file does not hold.
type expectation struct {
	ContentType string `json:"content_type"`
	NeedsChain  bool   `json:"needs_chain"`
	SenderHMAC  string `json:"sender_hmac"`
	ShouldPush  bool   `json:"should_push"`
	Signature   *struct {
		Bytes     string `json:"bytes"`
		PublicKey string `json:"public_key"`
	} `json:"signature"`
}

func (e *expectation) envelope(kind string, content []byte) (*backendv1.ClientEnvelope, error) {
	switch kinds[kind] {
	case topic.GroupMessage:
		hmac, err := hex.DecodeString(e.SenderHMAC)
		return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_GroupMessage{GroupMessage: &backendv1.GroupMessage{
			Data: content, SenderHmac: hmac, ShouldPush: e.ShouldPush,
		}}}, err
	case topic.Welcome:
		message, err := welcome(content)
		return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_WelcomeMessage{WelcomeMessage: message}}, err
	case topic.KeyPackage:
		return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_KeyPackage{
			KeyPackage: &backendv1.KeyPackage{KeyPackageTlsSerialized: content}}}, nil
	case topic.IdentityUpdate:
		var update associations.IdentityUpdate
		err := proto.Unmarshal(content, &update)
		return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_IdentityUpdate{IdentityUpdate: &update}}, err
	default:
		return e.commitLogEntry(content)
	}
}

func (e *expectation) commitLogEntry(content []byte) (*backendv1.ClientEnvelope, error) {
	entry := &backendv1.CommitLogEntry{SerializedCommitLogEntry: content}
	if e.Signature != nil {
		signature, err := hex.DecodeString(e.Signature.Bytes)
		if err != nil {
			return nil, err
		}
		key, err := hex.DecodeString(e.Signature.PublicKey)
		if err != nil {
			return nil, err
		}
		entry.Signature = &associations.RecoverableEd25519Signature{Bytes: signature, PublicKey: key}
	}
	return &backendv1.ClientEnvelope{Payload: &backendv1.ClientEnvelope_CommitLogEntry{CommitLogEntry: entry}}, nil
}

// welcome reads the JSON in which the older API's welcomes are recorded.
func welcome(content []byte) (*backendv1.WelcomeMessage, error) {
	var recorded struct {
		Version          string `json:"version"`
		InstallationKey  []byte `json:"installation_key"`
		Data             []byte `json:"data"`
		HPKEPublicKey    []byte `json:"hpke_public_key"`
		WelcomeMetadata  []byte `json:"welcome_metadata"`
		WelcomePointer   []byte `json:"welcome_pointer"`
		WrapperAlgorithm int32  `json:"wrapper_algorithm"`
	}
	if err := json.Unmarshal(content, &recorded); err != nil {
		return nil, err
	}
	if recorded.Version == "welcome_pointer" {
		return &backendv1.WelcomeMessage{Version: &backendv1.WelcomeMessage_WelcomePointer_{WelcomePointer: &backendv1.WelcomeMessage_WelcomePointer{
			InstallationKey: recorded.InstallationKey, WelcomePointer: recorded.WelcomePointer, HpkePublicKey: recorded.HPKEPublicKey,
			WrapperAlgorithm: message_contents.WelcomePointerWrapperAlgorithm(recorded.WrapperAlgorithm),
		}}}, nil
	}
	return &backendv1.WelcomeMessage{Version: &backendv1.WelcomeMessage_V1_{V1: &backendv1.WelcomeMessage_V1{
		InstallationKey: recorded.InstallationKey, Data: recorded.Data, HpkePublicKey: recorded.HPKEPublicKey,
		WelcomeMetadata: recorded.WelcomeMetadata, WrapperAlgorithm: message_contents.WelcomeWrapperAlgorithm(recorded.WrapperAlgorithm),
	}}}, nil
}
