// Package leasetest has a clock for tests.
package leasetest

import (
	"time"
	"unsafe"
)

// AfterPause returns a time that is later by the time of the day and not by the monotonic clock, which
// stands still while a virtual machine is paused. It writes into a time.Time: no function makes such a one.
func AfterPause(t time.Time, pause time.Duration) time.Time {
	type layout struct {
		wall uint64 // seconds from bit 30 on
		ext  int64
		loc  *time.Location
	}
	(*layout)(unsafe.Pointer(&t)).wall += uint64(pause/time.Second) << 30
	return t
}
