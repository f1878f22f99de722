package cluster

import (
	"os"
	"testing"
)

func TestMemoryOfAProcess(t *testing.T) {
	peak, err := PeakMemory(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if now, err := ResidentMemory(os.Getpid()); err != nil || now < 1 || peak < now/2 {
		t.Errorf("got %f MiB, %f at most, %v", now, peak, err)
	}
}
