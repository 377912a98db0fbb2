"""What comes to mind at a word: the demo's open-ended text, in which no word is certain."""

from random import Random

# What comes to mind at each word, the likeliest first.
ASSOCIATIONS = {
    line.split(": ")[0]: tuple(line.split(": ")[1].split())
    for line in """
dog: bone cat woof wolf farm
cat: mouse dog meow milk night
mouse: cheese cat owl kitchen night
cheese: yellow milk mouse kitchen bread
milk: white cow cat cheese kitchen
cow: grass milk moo sheep farm
moo: cow farm milk grass dog
grass: green cow sheep summer garden
green: cucumber grass tree garden summer
cucumber: salad green tomato garden kitchen
salad: tomato cucumber bread summer kitchen
tomato: red salad soup garden kitchen
red: blood tomato fox ring sun
blood: heart red king wolf bone
heart: gold blood king night red
gold: ring king yellow sun heart
ring: king gold sapphire red moon
king: lion ring gold castle blood
lion: roar king cat yellow sun
roar: sea lion wind night wolf
castle: stone king gold night wind
stone: river castle sapphire bone garden
bone: white dog stone blood soup
white: swan milk snow moon sheep
swan: lake white feather black king
lake: fish swan water moon blue
fish: water lake sea cat soup
water: river lake sea fish ice
river: sea water stone fish forest
sea: blue fish wind water river
blue: sky sea sapphire lake ice
sky: sun blue star moon wind
sun: summer sky yellow moon garden
summer: garden sun grass banana night
garden: carrot tree plum summer tomato
carrot: orange garden soup salad sheep
orange: carrot plum banana sun fox
banana: yellow orange plum tree summer
yellow: banana sun gold duck cheese
plum: purple garden orange tree banana
purple: plum sapphire king night sky
sapphire: blue ring stone purple gold
tree: forest green bird plum garden
forest: wolf tree fox owl night
wolf: sheep forest dog moon night
sheep: wool wolf baa grass farm
wool: winter sheep white cat farm
baa: sheep farm wool grass white
farm: pig cow dog duck bread
pig: oink farm soup carrot dog
oink: pig farm dog duck soup
duck: quack egg lake farm water
quack: duck farm lake bird egg
egg: bird duck white bread kitchen
bird: feather egg sky tree wind
feather: raven bird swan wind white
raven: black bird night feather castle
black: night raven cat swan bread
night: moon star owl wolf black
moon: star night wolf sky white
star: sky moon night gold winter
owl: hoot night forest mouse bird
hoot: owl night forest bird moon
fox: red forest sheep wolf duck
winter: snow ice wool wind soup
snow: ice white winter wolf wind
ice: water snow winter lake white
wind: winter feather sea sky tree
soup: kitchen bread carrot fish winter
kitchen: bread soup cheese mouse salad
bread: cheese soup egg kitchen farm
meow: cat milk mouse night kitchen
woof: dog bone wolf farm night
""".strip().splitlines()
}
_WEIGHTS = (4, 2, 2, 2, 2)


def chain(rng: Random, start: str, length: int) -> list[str]:
    """`length` words after `start`, each drawn from what comes to mind at the one before."""
    words = [start]
    for _ in range(length):
        words += rng.choices(ASSOCIATIONS[words[-1]], _WEIGHTS)
    return words[1:]
