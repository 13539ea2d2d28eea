// Package testdata holds the payloads that published clients made, so that
// tests and the demo of the command-line client can replay them from anywhere.
package testdata

import "embed"

// RealClient is the recording; its README tells what is in it.
//
//go:embed real-client
var RealClient embed.FS
