// Package doctor finds what is wrong with an installation of gpumem, from the
// objects of its cluster alone, and says how to fix it.
//
// Examine and the checks that it is made of are functions of a State: they ask
// no one and change nothing. The caller reads the objects, as far as it
// may; what it could not read is in Unread, and no check takes a missing list
// for an empty one.
//
// # Decisions
//
// An installation is found by the labels of the chart and known from others by
// its flag --resource-domain, because that is what its parts go by: names of
// releases and namespaces are free. The MPS daemon has no such flag, and goes with
// the device plugin of its release.
//
// An error is what keeps pods from their GPU memory, or breaks a promise about
// it. A warning is what will, or what weakens a safeguard. A state that passes
// by itself within seconds is neither: what is younger than Settle is not
// judged, and a note says so, for silence is not health.
//
// What is wrong with many pods for one reason is one finding, which names a few.
package doctor
