package placement

import (
	"slices"
	"strconv"
	"strings"
)

// NearMiss is a glob that matches no device of a node, and would if it were written otherwise.
type NearMiss struct {
	Wider string  // the glob that would match; empty: see Index
	Index *Device // the glob is the index of this device, not a UUID
}

// telling is how much of a UUID says which one was meant.
const telling = 4

// wholeUUID is how long the UUID of a GPU is.
const wholeUUID = len("GPU-00000000-0000-0000-0000-000000000000")

func (v Verdict) hasNearMiss() bool { _, ok := v.NearMiss(); return ok }

// NearMiss returns the first glob of the request that would let in a device of the node with a
// star before it, after it, or on either side. Nothing else of the request keeps that device out.
func (v Verdict) NearMiss() (NearMiss, bool) {
	models, ids := v.nearly()
	for _, glob := range v.Request.Models.Texts() {
		if text, ok := wider(models, glob, withStars(glob, true, false)); ok {
			return NearMiss{Wider: text}, true
		}
	}
	for _, glob := range v.Request.UUIDs.Texts() {
		if len(glob) >= wholeUUID {
			continue // that of one GPU of one node, as a rule
		}
		if at := slices.IndexFunc(v.Node.Devices, func(d Device) bool { return glob == strconv.Itoa(d.Index) }); at >= 0 {
			return NearMiss{Index: &v.Node.Devices[at]}, true
		}
		if len(strings.Trim(glob, "*")) < telling {
			continue
		}
		if text, ok := wider(ids, glob, withStars(glob, false, true)); ok {
			return NearMiss{Wider: text}, true
		}
	}
	return NearMiss{}, false
}

// nearly returns the names, folded, of models and of GPUs that one more glob of their list
// could let in: nothing else of the request keeps them out.
func (v Verdict) nearly() (models, ids [][]string) {
	for _, d := range v.Node.Devices {
		model, id := namesOfModel(d.Model), folded(string(d.UUID))
		if v.Request.UUIDs.match(id) && !v.Request.Models.exclude(model) {
			models = append(models, model)
		}
		if v.Request.Models.match(model) && !v.Request.UUIDs.exclude(id) {
			ids = append(ids, id)
		}
	}
	return slices.CompactFunc(models, slices.Equal), ids
}

// wider returns the first of two spellings of a glob that matches one of some names: first, or
// the glob with a star on either side.
func wider(names [][]string, glob, first string) (string, bool) {
	for _, text := range []string{first, withStars(glob, true, true)} {
		if text != glob && slices.ContainsFunc(names, newGlob(text).matches) {
			return text, true
		}
	}
	return "", false
}

// withStars returns a glob with stars on these sides too; one that excludes stays as it is.
func withStars(glob string, before, after bool) string {
	if strings.HasPrefix(glob, "!") {
		return glob
	}
	if before && !strings.HasPrefix(glob, "*") {
		glob = "*" + glob
	}
	if after && !strings.HasSuffix(glob, "*") {
		glob += "*"
	}
	return glob
}
