#include "json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Deep nesting would overflow the stack of a caller's thread; a machine needs five levels.
enum { MAX_DEPTH = 32 };

struct parser {
	const char *start;
	const char *at;
	const char *end;
	const char *problem; // the first thing that went wrong
};

static bool fail(struct parser *p, const char *problem)
{
	if (!p->problem)
		p->problem = problem;
	return false;
}

static void skip_space(struct parser *p)
{
	while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'))
		p->at++;
}

static bool take(struct parser *p, char c)
{
	if (p->at >= p->end || *p->at != c)
		return false;
	p->at++;
	return true;
}

static bool take_word(struct parser *p, const char *word)
{
	size_t n = strlen(word);
	if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0)
		return false;
	p->at += n;
	return true;
}

static bool hex4(struct parser *p, unsigned *out)
{
	unsigned value = 0;
	for (int i = 0; i < 4; i++) {
		if (p->at >= p->end)
			return fail(p, "unfinished \\u escape");
		char c = *p->at++;
		unsigned digit;
		if (c >= '0' && c <= '9')
			digit = (unsigned)(c - '0');
		else if (c >= 'a' && c <= 'f')
			digit = (unsigned)(c - 'a') + 10;
		else if (c >= 'A' && c <= 'F')
			digit = (unsigned)(c - 'A') + 10;
		else
			return fail(p, "bad \\u escape");
		value = value << 4 | digit;
	}
	*out = value;
	return true;
}

static size_t put_utf8(char *out, unsigned rune)
{
	if (rune < 0x80) {
		out[0] = (char)rune;
		return 1;
	}
	if (rune < 0x800) {
		out[0] = (char)(0xC0 | rune >> 6);
		out[1] = (char)(0x80 | (rune & 0x3F));
		return 2;
	}
	if (rune < 0x10000) {
		out[0] = (char)(0xE0 | rune >> 12);
		out[1] = (char)(0x80 | (rune >> 6 & 0x3F));
		out[2] = (char)(0x80 | (rune & 0x3F));
		return 3;
	}
	out[0] = (char)(0xF0 | rune >> 18);
	out[1] = (char)(0x80 | (rune >> 12 & 0x3F));
	out[2] = (char)(0x80 | (rune >> 6 & 0x3F));
	out[3] = (char)(0x80 | (rune & 0x3F));
	return 4;
}

static bool unicode_escape(struct parser *p, char *out, size_t *written)
{
	unsigned rune, low;
	if (!hex4(p, &rune))
		return false;
	if (rune >= 0xD800 && rune < 0xDC00) {
		if (!take(p, '\\') || !take(p, 'u') || !hex4(p, &low) || low < 0xDC00 || low > 0xDFFF)
			return fail(p, "high surrogate without its low one");
		rune = 0x10000 + ((rune - 0xD800) << 10) + (low - 0xDC00);
	} else if (rune >= 0xDC00 && rune < 0xE000) {
		return fail(p, "low surrogate without its high one");
	}
	if (rune == 0)
		return fail(p, "U+0000 in a string");
	*written = put_utf8(out, rune);
	return true;
}

// Reads a string whose opening quote is already taken. An escape is never shorter than
// the bytes it stands for, so the rest of the text bounds the buffer.
static char *read_string(struct parser *p)
{
	const char *close = p->at;
	while (close < p->end && *close != '"')
		close += (*close == '\\' && close + 1 < p->end) ? 2 : 1;
	if (close >= p->end) {
		fail(p, "unfinished string");
		return NULL;
	}
	char *out = malloc((size_t)(close - p->at) + 1);
	if (!out) {
		fail(p, "out of memory");
		return NULL;
	}
	size_t n = 0;
	while (p->at < close) {
		char c = *p->at++;
		if ((unsigned char)c < 0x20) {
			fail(p, "control character in a string");
			break;
		}
		if (c != '\\') {
			out[n++] = c;
			continue;
		}
		static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
		char escape = *p->at++;
		const char *known = escape ? strchr(names, escape) : NULL;
		if (known) {
			out[n++] = values[known - names];
		} else if (escape == 'u') {
			size_t written = 0;
			if (!unicode_escape(p, out + n, &written))
				break;
			n += written;
		} else {
			fail(p, "unknown escape");
			break;
		}
	}
	if (p->problem || !take(p, '"')) {
		fail(p, "malformed string");
		free(out);
		return NULL;
	}
	out[n] = '\0';
	return out;
}

static bool digits(struct parser *p)
{
	const char *from = p->at;
	while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
		p->at++;
	return p->at > from || fail(p, "malformed number");
}

// The grammar is walked first: strtod alone would accept hex, "inf" and "nan".
static bool read_number(struct parser *p, double *out)
{
	const char *from = p->at;
	take(p, '-');
	if (!take(p, '0') && !digits(p))
		return false;
	if (take(p, '.') && !digits(p))
		return false;
	if (take(p, 'e') || take(p, 'E')) {
		if (!take(p, '+'))
			take(p, '-');
		if (!digits(p))
			return false;
	}
	*out = strtod(from, NULL);
	return true;
}

static bool read_value(struct parser *p, struct json *v, int depth);

// Reads members or elements up to the closing bracket; the opening one is already taken.
static bool read_list(struct parser *p, struct json *v, int depth, bool object)
{
	char close = object ? '}' : ']';
	struct json **tail = &v->child;

	skip_space(p);
	if (take(p, close))
		return true;
	do {
		struct json *item = calloc(1, sizeof(*item));
		if (!item)
			return fail(p, "out of memory");
		*tail = item; // linked at once: json_free of the root frees it also after an error
		tail = &item->next;
		skip_space(p);
		if (object) {
			if (!take(p, '"'))
				return fail(p, "expected a member name");
			item->key = read_string(p);
			if (!item->key)
				return false;
			skip_space(p);
			if (!take(p, ':'))
				return fail(p, "expected ':'");
		}
		if (!read_value(p, item, depth + 1))
			return false;
		skip_space(p);
	} while (take(p, ','));
	return take(p, close) || fail(p, object ? "expected ',' or '}'" : "expected ',' or ']'");
}

static bool read_value(struct parser *p, struct json *v, int depth)
{
	if (depth > MAX_DEPTH)
		return fail(p, "nested too deeply");
	skip_space(p);
	if (take(p, '{')) {
		v->kind = JSON_OBJECT;
		return read_list(p, v, depth, true);
	}
	if (take(p, '[')) {
		v->kind = JSON_ARRAY;
		return read_list(p, v, depth, false);
	}
	if (take(p, '"')) {
		v->kind = JSON_STRING;
		v->string = read_string(p);
		return v->string != NULL;
	}
	if (take_word(p, "null")) {
		v->kind = JSON_NULL;
		return true;
	}
	if (take_word(p, "true") || take_word(p, "false")) {
		v->kind = JSON_BOOL;
		v->boolean = p->at[-2] == 'u'; // trUe, falSe
		return true;
	}
	v->kind = JSON_NUMBER;
	return read_number(p, &v->number);
}

struct json *json_parse(const char *text, size_t length, char *error, size_t error_size)
{
	struct parser p = {.start = text, .at = text, .end = text + length};
	struct json *root = calloc(1, sizeof(*root));
	if (!root) {
		snprintf(error, error_size, "out of memory");
		return NULL;
	}
	if (read_value(&p, root, 0)) {
		skip_space(&p);
		if (p.at == p.end)
			return root;
		fail(&p, "text after the value");
	}
	snprintf(error, error_size, "byte %td: %s", p.at - p.start, p.problem);
	json_free(root);
	return NULL;
}

void json_free(struct json *v)
{
	while (v) {
		struct json *next = v->next;
		json_free(v->child);
		free(v->string);
		free(v->key);
		free(v);
		v = next;
	}
}

const struct json *json_get(const struct json *object, const char *key)
{
	if (!object || object->kind != JSON_OBJECT)
		return NULL;
	for (const struct json *m = object->child; m; m = m->next)
		if (strcmp(m->key, key) == 0)
			return m;
	return NULL;
}
