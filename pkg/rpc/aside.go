package rpc

// Aside runs do on a goroutine of its own and waits for it; a panic of it becomes
// one of the caller.
//
// It is for goroutines that stay as long as a stream is open. A stack shrinks only
// when less than a quarter of it is in use: what do needs of it once would stay
// with the stream.
func Aside(do func()) {
	done := make(chan any)
	go func() {
		defer func() { done <- recover() }()
		do()
	}()
	if p := <-done; p != nil {
		panic(p) // whoever called knows what to do
	}
}
