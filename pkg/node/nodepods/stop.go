package nodepods

import (
	"time"

	"k8s.io/client-go/informers"
)

// stopGrace is how long watches may take to end. One that waits to try again,
// while the API server is away, does not look at its context for up to half a
// minute.
const stopGrace = time.Second

// shutdown waits for the watches of a factory whose context is done, but not
// for one that is asleep.
func shutdown(factory informers.SharedInformerFactory) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		factory.Shutdown()
	}()
	select {
	case <-done:
	case <-time.After(stopGrace):
	}
}
