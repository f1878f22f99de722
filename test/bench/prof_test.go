package main

import "testing"

func BenchmarkFilter(b *testing.B) {
	f, err := newFleet(5000, podsPerGPU)
	if err != nil { b.Fatal(err) }
	a := f.filter()
	b.Run(a.verb, func(b *testing.B) { for b.Loop() { a.time(a.routes, 1) } })
}
