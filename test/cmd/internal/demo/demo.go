// Package demo describes the demo to the program that builds it: it imports nothing.
package demo

// Steps is the number of steps that "make demo" shows. The first one builds gpumem-demo, which shows
// the others.
const Steps = 11
