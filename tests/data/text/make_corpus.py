#!/usr/bin/env python3
"""Writes corpus.txt: English text of our own for training runs and tests.

A small grammar: every paragraph has a subject, every subject has sentences with slots, every slot has
words that fit it. Sentences and words were written for this file; nothing is copied. The same seed gives
the same bytes:  python3 make_corpus.py > corpus.txt
"""

import random
import re

SEED = 20240511
TARGET_BYTES = 160_000

# Words of all subjects. A slot {name} takes one of them; {name!} takes the one that the paragraph chose
# first, so that a text stays with its river, its cook or its machine.
COMMON = {
    "time": ["in the morning", "before noon", "late in the afternoon", "at dusk", "during the night", "after the first frost", "at the end of the week", "once a month", "in early spring", "towards the end of autumn"],
    "often": ["usually", "often", "rarely", "almost always", "sometimes", "now and then", "in most years", "as a rule"],
    "because": ["because nobody had measured it", "because the old way was slower", "since the weather allowed it", "because there was no other room", "since two people had asked for it", "because the first attempt had failed", "since it cost almost nothing"],
    "result": ["and nothing was lost", "and the rest of the day was quiet", "which saved an hour", "which surprised everyone", "and so the work went on", "and the old plan was dropped", "which was enough"],
    "number": ["two", "three", "four", "five", "six", "seven", "eight", "twelve", "sixteen", "twenty", "thirty two", "sixty four"],
    "size": ["small", "large", "narrow", "wide", "heavy", "light", "long", "short"],
    "person": ["the engineer", "the visitor", "the apprentice", "her neighbour", "the teacher", "an older colleague", "the keeper", "his sister"],
    "said": ["said", "explained", "wrote in the notebook", "used to say", "repeated"],
    "maxim": ["that a thing measured once is not yet known", "that haste is paid for twice", "that the slowest part decides", "that a good plan fits on one page", "that nothing replaces looking", "that one should ask before lifting", "that small losses add up"],
    "link": ["Still,", "For this reason", "In the same way", "Even so,", "At first", "Later on", "Meanwhile", "In the end"],
}

SUBJECTS = {
    "cluster": {
        "slots": {
            "machine": ["the cluster", "the new rack", "the training machine", "the second pod", "the test system"],
            "device": ["device", "accelerator", "card", "processor"],
            "part": ["switch", "cable", "power supply", "host adapter", "memory bank", "fan", "bridge"],
            "work": ["the forward pass", "the backward pass", "the optimizer step", "the reduction of the gradients", "the gathering of the parameters", "the loading of a batch"],
            "quantity": ["the bandwidth", "the latency", "the peak memory", "the step time", "the temperature", "the number of tokens in a second"],
            "change": ["doubled", "fell by a third", "stayed the same", "rose slowly", "dropped to almost nothing", "became steady"],
        },
        "sentences": [
            "{machine!} has {number} hosts, and every host holds {number} {device}s that share one {part}.",
            "Inside a host each {device} reaches every other {device} directly, but between hosts all traffic goes through a single {part}.",
            "When {work} begins, {quantity} is what matters most, and {quantity} matters hardly at all.",
            "After the {part} was replaced, {quantity} {change}, {result}.",
            "A group of {number} ranks should stay on one host, since {work} sends a message for every layer.",
            "{work} waits for {work}, so that a late rank delays all the others.",
            "If one {device} is slower than the rest, {quantity} of the whole machine is set by it.",
            "{person} {said} {maxim}, and then looked at {quantity} again.",
            "On {machine!} {quantity} was recorded {time}, and it {change} as soon as {work} had finished.",
            "The memory of a {device} holds the weights, their gradients, the state of the optimizer and what the backward pass needs.",
            "With {number} micro batches the pipeline is full for most of the step; with {number} it stands idle for a part of it.",
            "Nobody noticed the broken {part} until {quantity} {change}.",
            "{link} {work} was moved beside {work}, {because}.",
        ],
    },
    "pipeline": {
        "slots": {
            "stage": ["the first stage", "the second stage", "the last stage", "the middle stage", "the stage before it"],
            "thing": ["micro batch", "activation", "message", "buffer", "layer", "gradient"],
            "act": ["sends", "receives", "keeps", "frees", "waits for", "computes", "passes on"],
            "state": ["full", "empty", "balanced", "uneven", "blocked", "warm"],
        },
        "sentences": [
            "{stage} {act} one {thing} and then {act} the next {thing}.",
            "A pipeline is {state} only after {number} steps, and it is {state} again at the end.",
            "The {thing} that {stage} {act} is the one that {stage} needs {number} steps later.",
            "If {stage} {act} a {thing} before {stage} {act} it, both of them stand still for ever.",
            "The rule is simple: one forward, one backward, and never more than {number} of a kind in flight.",
            "Uneven layers make {stage} slow, so that {stage} is given one layer less.",
            "The embedding belongs to the first stage and the head belongs to the last stage, and both are counted as work.",
            "{person} drew the schedule on paper, with one row for {stage} and one column for every {thing}.",
            "{link} the bubble is the time in which a stage has nothing to do.",
            "Every {thing} has a number, a sender and a receiver, and the three of them must agree.",
            "When the schedule was drawn again, {stage} was {state} and {stage} was {state}, {result}.",
        ],
    },
    "weather": {
        "slots": {
            "wind": ["the north wind", "a warm wind from the south", "the sea breeze", "a dry wind", "the evening wind"],
            "sky": ["clear", "grey", "full of high thin clouds", "dark in the west", "pale and cold", "bright"],
            "fall": ["rain", "snow", "hail", "fog", "drizzle", "sleet"],
            "place": ["over the hills", "along the coast", "in the valley", "above the town", "on the plain", "near the lake"],
            "do": ["came down", "moved on", "lasted until evening", "turned into ice", "hid the road", "ended as quickly as it had begun"],
        },
        "sentences": [
            "{time}, the sky was {sky} and {wind} blew {place}.",
            "The {fall} {do}, {result}.",
            "{often}, {wind} brings {fall} {place}, and the pressure falls by {number} points.",
            "There was {fall} {place}, but the sky {place} was {sky}.",
            "{person} {said} {maxim}, and took a coat all the same.",
            "The barometer fell {time}, and {number} hours later the {fall} {do}.",
            "{link} the warm air rose {place}, cooled, and became {fall}.",
            "When {wind} stops, the {fall} {often} begins.",
            "{number} days of {fall} were followed by {number} days on which the sky was {sky}.",
            "The station {place} has measured {fall} for {number} years, {because}.",
        ],
    },
    "kitchen": {
        "slots": {
            "dish": ["the soup", "the bread", "the stew", "the pie", "the sauce", "the porridge"],
            "food": ["onions", "carrots", "beans", "barley", "apples", "mushrooms", "leeks", "potatoes", "lentils"],
            "taste": ["salt", "pepper", "thyme", "a little vinegar", "butter", "a spoon of honey"],
            "tool": ["a wooden spoon", "a sharp knife", "an iron pan", "the big pot", "a clean cloth", "a shallow dish"],
            "heat": ["on a low flame", "in a hot oven", "under a lid", "beside the stove", "without any hurry"],
        },
        "sentences": [
            "For {dish!} take {number} {food}, cut them with {tool}, and add {taste}.",
            "Let {dish!} rest {heat} until the {food} are soft.",
            "{person} {said} {maxim}, and stirred {dish!} with {tool}.",
            "The {food} go first, then the {food}, and the {taste} comes last.",
            "{often}, {dish!} is better on the second day, when the {taste} has had time to spread.",
            "If there are no {food}, then {food} will do, but use less of the {taste}.",
            "{dish!} stood {heat}, and the whole house smelled of {taste} and {food}.",
            "{time}, the cook washed the {food}, dried them with {tool}, and put them aside.",
            "{link} one cook cannot use {number} stoves, and {number} cooks cannot share one knife.",
            "Put {tool} back where it was, {because}.",
            "Too much {taste} cannot be taken out again, {result}.",
        ],
    },
    "river": {
        "slots": {
            "water": ["the river", "the stream", "the old canal", "the upper river", "the mill race"],
            "bank": ["the left bank", "the right bank", "the stone bank", "the meadow", "the lower bridge", "the weir"],
            "being": ["a heron", "an otter", "a pair of swans", "the kingfisher", "a school of small fish", "a water rat"],
            "plant": ["willows", "reeds", "alders", "tall grass", "water lilies", "poplars"],
            "go": ["turns", "slows down", "grows wide", "runs between stones", "leaves the woods", "divides in two"],
        },
        "sentences": [
            "{water!} {go} near {bank}, where {plant} grow close to the water.",
            "{time}, {being} waits below {bank} and does not move.",
            "Between {bank} and {bank} the water is {size} and cold.",
            "{water!} carries {number} tons of sand in a day, and leaves most of it at {bank}.",
            "After the thaw {water!} {go} and floods {bank}, {result}.",
            "The {plant} hold the earth of {bank} together; without them {water!} would take it away.",
            "{person} saw {being} under the {plant}, {number} steps from {bank}.",
            "{often}, the ferry crosses to {bank} in {number} minutes.",
            "{link} what flows in at {bank} must flow out at {bank}.",
            "A boat can be no wider than the narrowest lock, and {water!} has {number} of them.",
            "The miller opened the gate {time}, {because}.",
        ],
    },
    "workshop": {
        "slots": {
            "object": ["the table", "the clock", "the chest", "the wheel", "the ladder", "the violin"],
            "piece": ["board", "screw", "hinge", "spring", "peg", "gear", "joint"],
            "wood": ["oak", "ash", "pine", "walnut", "beech", "cherry"],
            "make": ["planed", "glued", "cut", "measured", "polished", "turned", "joined"],
            "fault": ["a crack", "a knot", "a worn edge", "a loose end", "a dark stain"],
        },
        "sentences": [
            "{object!} is made of {wood}, and each {piece} of it was {make} by hand.",
            "First the {piece} is {make}, then it is {make}, and only then is it {make}.",
            "{person} found {fault} in the {piece} and {make} it again.",
            "{number} {piece}s hold {object!} together, and {number} of them carry the weight.",
            "{wood} is harder than {wood}, but {wood} is easier to mend.",
            "{often}, {fault} shows itself only after the {piece} has been {make}.",
            "The master {said} {maxim}, and {make} the {piece} once more.",
            "{link} a {piece} that is too {size} cannot be made right by force.",
            "{object!} was finished {time}, {result}.",
            "Do not buy {wood} with {fault}, however cheap it is.",
            "The drawings show every {piece} of {object!} from {number} sides, {because}.",
        ],
    },
    "garden": {
        "slots": {
            "bed": ["the long bed", "the bed by the wall", "the new bed", "the orchard", "the glass house", "the shady corner"],
            "crop": ["peas", "cabbages", "strawberries", "pumpkins", "roses", "sunflowers", "tomatoes", "lettuce"],
            "task": ["water", "weed", "rake", "dig", "shade", "mulch"],
            "pest": ["snails", "late frost", "crows", "greenfly", "drought", "mice"],
        },
        "sentences": [
            "The {crop} stand in {bed!}, in rows of {number}, with a {size} path between them.",
            "{time}, {task} {bed!} and look for {pest}.",
            "{pest} took the {crop} last year, so this year they grow in {bed}.",
            "{often}, {crop} do better after {crop} than after {crop}.",
            "{person} {said} {maxim}, and went to {task} {bed!}.",
            "A bed of {number} steps feeds {number} people, if {pest} can be kept out.",
            "{link} what is sown too early is lost to {pest}.",
            "To {task} {bed} takes {number} hours, and to {task} {bed} takes {number} more.",
            "The {crop} came up {time}, {result}.",
            "Nobody planted {crop} in {bed}, {because}.",
        ],
    },
    "library": {
        "slots": {
            "book": ["the atlas", "the old ledger", "the book of tables", "the dictionary", "the travel diary", "the second volume"],
            "room": ["the reading room", "the cellar", "the gallery", "the map room", "the entrance hall"],
            "about": ["the stars", "harbours and tides", "the grain trade", "the first railways", "the history of the town", "bees"],
            "look": ["thick", "worn", "carefully bound", "easy to overlook", "full of notes", "almost new"],
        },
        "sentences": [
            "{book!} is kept in {room}, and it is {look}.",
            "It tells about {about} and about {about}, in {number} chapters.",
            "{person} came {time} to read about {about}, and stayed for {number} hours.",
            "Whoever borrows {book} signs for it in {room}.",
            "{often}, a book about {about} stands beside one about {about}, {because}.",
            "On the last page of {book!} someone wrote {maxim}.",
            "{room} is {look2}, with {number} lamps and {number} chairs.",
            "{link} a book in the wrong place is as good as lost.",
            "The librarian {said} {maxim}, and carried {book!} back to {room}.",
            "The catalogue lists {number} works on {about}, {result}.",
        ],
    },
    "railway": {
        "slots": {
            "train": ["the night train", "the slow train", "the freight train", "the express", "the first train"],
            "stop": ["the junction", "the border station", "the harbour", "the mountain halt", "the central station"],
            "load": ["timber", "mail", "coal", "passengers", "milk", "spare parts"],
            "signal": ["the signal", "the semaphore", "the gate", "the bell", "the telegraph"],
        },
        "sentences": [
            "{train!} leaves {stop} {time} and reaches {stop} {number} hours later.",
            "It carries {load} to {stop} and comes back with {load}.",
            "Two trains cannot share one track, so {train} waits at {stop} until {signal} changes.",
            "When {signal} failed, {train!} stood at {stop} for {number} minutes, {result}.",
            "{often}, {train} is late, because {train} was late before it.",
            "{person} {said} {maxim}, and looked at the clock of {stop}.",
            "The timetable gives each train a place and a moment; whoever misses the one loses the other.",
            "{link} the longest stretch without a siding decides how many trains can run.",
            "At {stop} the {load} is moved from {train!} to {train}.",
            "The line to {stop} has {number} bridges and a {size} tunnel.",
            "{signal} at {stop} is worked by hand, {because}.",
        ],
    },
    "measuring": {
        "slots": {
            "tool2": ["the scale", "the ruler", "the clock", "the thermometer", "the counter", "the gauge"],
            "value": ["the length", "the weight", "the time", "the speed", "the error", "the mean", "the rate"],
            "unit": ["metres", "seconds", "grams", "degrees", "bytes", "steps", "turns"],
            "judge": ["too high", "too low", "close enough", "better than expected", "of no use", "as predicted"],
        },
        "sentences": [
            "{value} was {number} {unit}, and {value} was {number} {unit}.",
            "Measure {value} with {tool2}, write it down, and measure {value} again.",
            "A number without its unit is {judge}.",
            "What {tool2} shows is {judge} when {tool2} is cold.",
            "The prediction was {number} {unit}, the measurement {number} {unit}, and the difference was {judge}.",
            "{person} {said} {maxim}, and wrote down {value}.",
            "{link} {value} is divided by {value}, and the quotient has a unit of its own.",
            "The average of {number} readings is {judge}, unless one of them is wrong.",
            "{often}, {value} depends on {value}, and nobody had thought of that.",
            "Before {value} can be trusted, {tool2} must be tried on something known, {result}.",
        ],
    },
}
SUBJECTS["library"]["slots"]["look2"] = ["quiet", "cold in winter", "open to everyone", "larger than it seems"]


def fill(template, slots, kept, rng):
    """One sentence: every slot replaced, the first letter made large."""
    last = {}

    def word(match):
        name, keep = match.group(1), match.group(2)
        if keep:
            last[name] = kept.setdefault(name, rng.choice(slots[name]))
            return last[name]
        # Not the same word twice in a row within a sentence.
        choices = [w for w in slots[name] if w != last.get(name)] or slots[name]
        last[name] = rng.choice(choices)
        return last[name]

    text = re.sub(r"\{(\w+)(!?)\}", word, template)
    return re.sub(r"(^|\. )([a-z])", lambda m: m.group(1) + m.group(2).upper(), text)


def paragraph(subject, rng):
    spec = SUBJECTS[subject]
    slots = {**COMMON, **spec["slots"]}
    kept = {}
    templates = rng.sample(spec["sentences"], k=rng.randint(4, 7))
    return " ".join(fill(t, slots, kept, rng) for t in templates)


def main():
    rng = random.Random(SEED)
    subjects = sorted(SUBJECTS)
    parts, size, previous = [], 0, None
    while size < TARGET_BYTES:
        subject = rng.choice([s for s in subjects if s != previous])
        previous = subject
        parts.append(paragraph(subject, rng))
        size += len(parts[-1].encode()) + 2
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
