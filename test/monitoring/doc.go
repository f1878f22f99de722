// Package monitoring runs a real Prometheus, for tests of what gpumem tells it.
//
// The programs are Debian's. They are unpacked into the cache, and not installed:
// the package would start a service of the machine.
package monitoring
