package placement

import "unique"

// list is containers in their order. It is compared with ==: two of the same are one in memory.
// It does not change; the zero value is empty.
type list struct{ first unique.Handle[link] }

type link struct {
	Container
	rest list
}

func (l list) prepend(c Container) list { return list{unique.Make(link{c, l})} }

func (l list) all() (out []Container) {
	for ; l != (list{}); l = l.first.Value().rest {
		out = append(out, l.first.Value().Container)
	}
	return out
}
