# cython: language_level=3
"""Topic matcher: every pattern that matches a routing key, in one walk over the key's words.

Guarantee: `match` visits each trie node at most once per word of the key, whatever mixture of `*` and `#`
the patterns hold. The set of live nodes is carried forward word by word and a stamp on each node keeps it
out of the set a second time, so `#.#.#` costs three nodes per word and not a binomial number of paths.
There is no recursion.

Words are separated by dots; the empty key has no words, "a." has two. `*` stands for exactly one word, `#`
for zero or more. A binding made twice is counted and stays until it is removed twice; empty branches are
freed at once.
"""
cimport cython


@cython.final
cdef class _Node:
    """One position in the patterns: where each next word leads, and the values of the pattern ending here."""

    cdef dict children        # literal word -> _Node
    cdef _Node star
    cdef _Node hash
    cdef dict values          # value -> number of equal bindings
    cdef bint loops           # reached by '#': any further word stays here
    cdef long long stamp      # the last step that put this node into the live set

    cdef bint is_empty(self):
        return not self.children and not self.values and self.star is None and self.hash is None


@cython.final
cdef class TopicMatcher:
    """All topic bindings of one exchange."""

    cdef _Node root
    cdef long long step
    cdef Py_ssize_t nodes
    cdef Py_ssize_t pairs

    def __cinit__(self):
        self.root = _Node()
        self.step = 0
        self.nodes = 1
        self.pairs = 0

    def __len__(self):
        """Number of different (pattern, value) pairs."""
        return self.pairs

    @property
    def node_count(self):
        """Number of trie nodes held, the root included."""
        return self.nodes

    def add(self, bytes pattern not None, object value):
        """Bind `value` (hashable) to `pattern`; a repeated binding is counted."""
        cdef _Node node = self.root
        cdef bytes word
        for word in _words(pattern):
            node = self._child(node, word)
        if node.values is None:
            node.values = {}
        if value in node.values:
            node.values[value] += 1
        else:
            node.values[value] = 1
            self.pairs += 1

    def remove(self, bytes pattern not None, object value):
        """Undo one `add`; KeyError if there was none."""
        cdef list words = _words(pattern)
        cdef list path = [self.root]
        cdef _Node node = self.root
        cdef bytes word
        cdef object count
        for word in words:
            node = _step(node, word)
            if node is None:
                raise KeyError((pattern, value))
            path.append(node)
        count = None if node.values is None else node.values.get(value)
        if count is None:
            raise KeyError((pattern, value))
        if count > 1:
            node.values[value] = count - 1
            return
        del node.values[value]
        self.pairs -= 1
        self._prune(words, path)

    def match(self, bytes key not None):
        """Return the values of all matching patterns, each value once per pattern."""
        cdef list live = []
        cdef list following
        cdef list found = []
        cdef _Node node
        cdef _Node child
        cdef bytes word
        self.step += 1
        self._enter(live, self.root)
        for word in _words(key):
            self.step += 1
            following = []
            for node in live:
                if node.loops:
                    self._enter(following, node)
                if node.star is not None:
                    self._enter(following, node.star)
                if node.children is not None:
                    child = <_Node>node.children.get(word)
                    if child is not None:
                        self._enter(following, child)
            if not following:
                return found
            live = following
        for node in live:
            if node.values:
                found.extend(node.values)
        return found

    cdef void _enter(self, list live, _Node node):
        # A '#' child matches zero words, so it is live wherever its parent is. The chain below '#' nodes
        # ("#.#.#") is followed here in a loop; the stamp ends it where the set already holds the rest.
        while node is not None and node.stamp != self.step:
            node.stamp = self.step
            live.append(node)
            node = node.hash

    cdef _Node _child(self, _Node node, bytes word):
        cdef _Node child = _step(node, word)
        if child is not None:
            return child
        child = _Node()
        self.nodes += 1
        if word == b"*":
            node.star = child
        elif word == b"#":
            node.hash = child
            child.loops = True
        else:
            if node.children is None:
                node.children = {}
            node.children[word] = child
        return child

    cdef void _prune(self, list words, list path):
        cdef Py_ssize_t i
        cdef _Node parent
        cdef bytes word
        for i in range(len(words) - 1, -1, -1):
            if not (<_Node>path[i + 1]).is_empty():
                return
            parent = <_Node>path[i]
            word = <bytes>words[i]
            self.nodes -= 1
            if word == b"*":
                parent.star = None
            elif word == b"#":
                parent.hash = None
            else:
                del parent.children[word]


cdef list _words(bytes key):
    return key.split(b".") if key else []


cdef _Node _step(_Node node, bytes word):
    if word == b"*":
        return node.star
    if word == b"#":
        return node.hash
    if node.children is None:
        return None
    return <_Node>node.children.get(word)
