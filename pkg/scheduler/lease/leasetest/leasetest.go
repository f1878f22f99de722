// Package leasetest creates clock readings for tests.
package leasetest

import (
	"time"
	"unsafe"
)

// AfterPause returns the reading of the clock after a pause of a virtual machine that began at t: the wall
// clock has advanced, and the monotonic clock has not. No function of package time returns such a value, so
// AfterPause changes the fields of time.Time.
func AfterPause(t time.Time, pause time.Duration) time.Time {
	type layout struct {
		wall uint64 // seconds from bit 30
		ext  int64
		loc  *time.Location
	}
	(*layout)(unsafe.Pointer(&t)).wall += uint64(pause/time.Second) << 30
	return t
}
