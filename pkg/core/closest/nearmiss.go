package closest

import (
	"slices"
	"strconv"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// NearMiss describes a glob that matches no device of a node but probably should.
type NearMiss struct {
	Wider string            // wider glob that would match; empty if Index is set
	Index *placement.Device // device whose index the glob contains instead of a UUID
}

// telling is the minimum number of characters of a UUID that identify the intended GPU.
const telling = 4

// wholeUUID is the length of a GPU's UUID.
const wholeUUID = len("GPU-00000000-0000-0000-0000-000000000000")

// FindNearMiss returns the first glob of the request that would match a device of the node with a star
// before it, after it, or on both sides. The rest of the request allows that device.
func FindNearMiss(v placement.Verdict) (NearMiss, bool) {
	models, ids := nearly(v)
	for _, glob := range v.Request.Models.Texts() {
		if text, ok := wider(models, placement.Globs.MatchModel, glob, withStars(glob, true, false)); ok {
			return NearMiss{Wider: text}, true
		}
	}
	for _, glob := range v.Request.UUIDs.Texts() {
		if len(glob) >= wholeUUID {
			continue // a complete UUID usually names one GPU of one node
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

// nearly returns the models and the UUIDs that one more glob in their list could match: the rest of the
// request allows them.
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

// excluding returns the globs that exclude names.
func excluding(globs placement.Globs) placement.Globs {
	return placement.NewGlobs(slices.DeleteFunc(globs.Texts(), func(text string) bool { return !strings.HasPrefix(text, "!") })...)
}

// wider returns the first of two variants of a glob that matches one of the names: first, or the glob
// with a star on both sides.
func wider(names []string, match func(placement.Globs, string) bool, glob, first string) (string, bool) {
	for _, text := range []string{first, withStars(glob, true, true)} {
		globs := placement.NewGlobs(text)
		if text != glob && slices.ContainsFunc(names, func(name string) bool { return match(globs, name) }) {
			return text, true
		}
	}
	return "", false
}

// withStars adds stars to the given sides of a glob. It does not change an excluding glob.
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
