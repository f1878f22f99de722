package placement

import (
	"slices"
	"unique"
)

// list is a list of values that is compared with ==: two of the same values in the same order are
// one in memory. It does not change; the zero value is empty.
type list[T comparable] struct{ first unique.Handle[link[T]] }

type link[T comparable] struct {
	value T
	rest  list[T]
}

func newList[T comparable](values []T) (l list[T]) {
	for _, v := range slices.Backward(values) {
		l.first = unique.Make(link[T]{value: v, rest: l})
	}
	return l
}

func (l list[T]) empty() bool { return l == list[T]{} }

// head returns the first value; there must be one.
func (l list[T]) head() T { return l.first.Value().value }

// tail returns the list without its first value; there must be one.
func (l list[T]) tail() list[T] { return l.first.Value().rest }

func (l list[T]) len() (n int) {
	for ; !l.empty(); l = l.tail() {
		n++
	}
	return n
}

func (l list[T]) all() []T {
	out := make([]T, 0, l.len())
	for ; !l.empty(); l = l.tail() {
		out = append(out, l.head())
	}
	return out
}
