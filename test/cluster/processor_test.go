package cluster

import (
	"os"
	"testing"
	"time"
)

func TestProcessorTime(t *testing.T) {
	got, err := processorTime([]byte("1 (a) b) S 0 1 1 0 -1 4194560 1 2 3 4 150 50 7 8 20 0 9\n"))
	if err != nil || got != 2*time.Second {
		t.Errorf("got %s, %v; want 2s", got, err)
	}
	if _, err := processorTime([]byte("1 (a) S 0")); err == nil {
		t.Error("too few fields are no error")
	}
}

func TestMemoryOfAProcess(t *testing.T) {
	peak, err := PeakMemory(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if now, err := ResidentMemory(os.Getpid()); err != nil || now < 1 || peak < now/2 {
		t.Errorf("got %f MiB, %f at most, %v", now, peak, err)
	}
}
