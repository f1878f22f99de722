package closest

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// NearMiss is a glob that matches no device of a node, and would if it were written otherwise.
type NearMiss struct {
	Wider string            // the glob that would match; empty: see Index
	Index *placement.Device // the glob is the index of this device, not a UUID
}

// telling is how much of a UUID says which one was meant.
const telling = 4

// wholeUUID is how long the UUID of a GPU is.
const wholeUUID = len("GPU-00000000-0000-0000-0000-000000000000")

// FindNearMiss returns the first glob of the request that would let in a device of the node with a
// star before it, after it, or on either side. Nothing else of the request keeps that device out.
func FindNearMiss(v placement.Verdict) (NearMiss, bool) {
	models, ids := nearly(v)
	for _, glob := range v.Request.Models.Texts() {
		if text, ok := wider(models, placement.Globs.MatchModel, glob, withStars(glob, true, false)); ok {
			return NearMiss{Wider: text}, true
		}
	}
	for _, glob := range v.Request.UUIDs.Texts() {
		if len(glob) >= wholeUUID {
			continue // that of one GPU of one node, as a rule
		}
		if at := slices.IndexFunc(v.Node.Devices, func(d placement.Device) bool { return glob == strconv.Itoa(d.Index) }); at >= 0 {
			return NearMiss{Index: &v.Node.Devices[at]}, true
		}
		if len(strings.Trim(glob, "*")) < telling {
			continue
		}
		matchID := func(g placement.Globs, id string) bool { return g.Match(id) }
		if text, ok := wider(ids, matchID, glob, withStars(glob, false, true)); ok {
			return NearMiss{Wider: text}, true
		}
	}
	return NearMiss{}, false
}

// nearly returns the models and the UUIDs that one more glob of their list could let in: nothing
// else of the request keeps them out.
func nearly(v placement.Verdict) (models, ids []string) {
	notModels, notIDs := excluding(v.Request.Models), excluding(v.Request.UUIDs)
	for _, d := range v.Node.Devices {
		id := string(d.UUID)
		if v.Request.UUIDs.Match(id) && notModels.MatchModel(d.Model) {
			models = append(models, d.Model)
		}
		if v.Request.Models.MatchModel(d.Model) && notIDs.Match(id) {
			ids = append(ids, id)
		}
	}
	return slices.Compact(models), ids
}

// excluding returns those of the globs that exclude.
func excluding(globs placement.Globs) placement.Globs {
	return placement.NewGlobs(slices.DeleteFunc(globs.Texts(), func(text string) bool { return !strings.HasPrefix(text, "!") })...)
}

// wider returns the first of two spellings of a glob that matches one of some names: first, or
// the glob with a star on either side.
func wider(names []string, match func(placement.Globs, string) bool, glob, first string) (string, bool) {
	for _, text := range []string{first, withStars(glob, true, true)} {
		globs := placement.NewGlobs(text)
		if text != glob && slices.ContainsFunc(names, func(name string) bool { return match(globs, name) }) {
			return text, true
		}
	}
	return "", false
}

// withStars returns a glob with stars on these sides too; one that excludes is left as it is.
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
