"""Folders as people have them, and questions about them, each with the document that answers it.

In each language a lease or a page of questions has the words that a question is put in, more often
than the note that answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Folder:
    """Texts by their names, and for each question the name of the document that answers it."""

    documents: Mapping[str, str]
    answered_by: Mapping[str, str]


LEASE = """
LEASE AGREEMENT. This agreement is between the landlord and the tenant, and it is made on the first
of March. What is not in the agreement is not agreed. The tenant is to keep the flat in the state in
which it is handed over, and what is broken is to be mended by the tenant. The door of the flat is
to be locked when the tenant is away. The rent is 900 euros a month, and it is due on the third
working day. What the tenant pays in advance is the deposit, which is three rents.

The tenant may keep a cat. Whether a dog is allowed is for the landlord to say. The code of conduct
of the house is part of the agreement: what it says on noise, on bicycles in the hall and on the
washing in the yard is to be heeded. The notice is three months for the tenant, and what the law
says for the landlord. The keys are to be given back on the last day. Who loses one pays for the
lock.
"""
HOME = {
    "home/lease.md": LEASE,
    "home/door.md": "Door code: 4711#. It changes in June.",
    "home/wifi.txt": "wifi: HeronNet, password blue-otter-22",
    "home/boiler.md": "The boiler engineer comes every October. Call Ms Petrov, 0151 555 017.",
    "work/heron-releases.md": "Heron 3 came out in May. It is supported for two years; Heron 2 ends"
    " in December.",
    "work/meeting.md": "Meeting of Monday: we promised the Lisbon office a demo on 14 June. Ana"
    " writes the slides, Tom books the room.",
    "work/expenses.csv": "date: 3 May | what: train to Porto | amount: 48.20\n"
    "date: 9 May | what: hotel in Porto | amount: 212.00",
    "work/config.py": "MAX_RETRIES = 7\nTIMEOUT_S = 30\n\ndef open_channel(address: str) -> None:"
    ' ...\n# "what is the code" is asked by the door of the office\n',
    "recipes/soup.md": "Pumpkin soup: roast the pumpkin, add ginger and coconut milk, simmer 20"
    " minutes.",
    "recipes/bread.md": "Sourdough: feed the starter the evening before; bake at 240 degrees.",
    "health/allergies.md": "Mia is allergic to penicillin and to walnuts.",
    "car/garage.md": "Winter tyres are stored at Kessler's garage. Pressure 2.4 bar.",
}
ABOUT_HOME = {
    "what is the door code": "home/door.md",
    "What is the code for the door?": "home/door.md",
    "what is the wifi password": "home/wifi.txt",
    "how much is the rent": "home/lease.md",
    "who comes for the boiler": "home/boiler.md",
    "what did we promise the Lisbon office": "work/meeting.md",
    "when does Heron 2 end": "work/heron-releases.md",
    "what did the hotel in Porto cost": "work/expenses.csv",
    "what is MAX_RETRIES": "work/config.py",
    "how long does the pumpkin soup simmer": "recipes/soup.md",
    "what is Mia allergic to": "health/allergies.md",
    "where are the winter tyres": "car/garage.md",
    "at how many degrees is the bread to be baked": "recipes/bread.md",
    "tell me the code of the door please": "home/door.md",
    "door code": "home/door.md",
    "how many months of notice does the tenant have": "home/lease.md",
    "who pays for a lost key": "home/lease.md",
    "which temperature for sourdough": "recipes/bread.md",
    "what is it that Ms Petrov does": "home/boiler.md",
    "is Mia allergic to nuts": "health/allergies.md",
}

NOTES = {
    "leave": "公司规定员工每年有十五天年假,需要提前两周向主管申请。",
    "parking": "地下停车场的车位按月租用,费用为三百元。",
    "printer": "打印机的墨盒放在三楼的储物柜里。",
    "doctor": "体检安排在每年九月,地点是市中心医院。",
    "meeting": "週間会議は毎週月曜日の午後二時に第三会議室で開かれます。",
    "visitor": "来客用の入館証は受付で受け取ってください。",
    "holiday": "휴가는 일 년에 열다섯 날이며 두 주 전에 신청해야 합니다.",
    "meals": "พนักงานได้รับค่าอาหารกลางวันวันละหนึ่งร้อยบาท",
}
ABOUT_NOTES = {
    "年假有几天": "leave",
    "停车费用": "parking",
    "墨盒在哪里": "printer",
    "体检是什么时候": "doctor",
    "会議はいつですか": "meeting",
    "入館証": "visitor",
    "휴가 신청": "holiday",
    "ค่าอาหาร": "meals",
    "请问停车场在哪里": "parking",
    "会議室はどこですか": "meeting",
}

MAILS_AND_TABLES = {
    "mail/dentist.eml": (
        "From: practice@example.org\n"
        "Subject: Your appointment\n"
        "\n"
        "Dear Ms Beck, your appointment at the dentist is on 14 June at 9:30. What you are to "
        "bring is the card."
    ),
    "mail/landlord.eml": (
        "From: landlord@example.org\n"
        "Subject: What is due\n"
        "\n"
        "Dear tenant, what is due is the service charge of the year, 212 euros. What is in the "
        "annex is the list of what it is for. The door of the cellar is to be closed."
    ),
    "mail/parcel.eml": (
        "From: post@example.org\n"
        "Subject: Parcel\n"
        "\n"
        "Your parcel is at the shop in Mill Lane. The pickup code is QX-90."
    ),
    "table/plants.csv": (
        "plant: Monstera | room: living room | water: weekly\n"
        "plant: Cactus | room: study | water: monthly\n"
        "plant: Fern | room: bathroom | water: daily"
    ),
    "table/phones.csv": (
        "name: Ana | phone: 0151 555 001\n"
        "name: Tom | phone: 0151 555 002\n"
        "name: Kessler | phone: 0151 555 003"
    ),
    "notes/faq.md": (
        "What is this? What is it for, and who is it by? This is what you are to read first. "
        "How do you do it, how long is it, how much is it, where is it, and when is it?"
    ),
    "notes/safe.md": "Safe: left 20, right 8, left 41.",
}

ABOUT_MAILS_AND_TABLES = {
    "when is my appointment at the dentist": "mail/dentist.eml",
    "what is the pickup code of the parcel": "mail/parcel.eml",
    "how often does the fern need water": "table/plants.csv",
    "what's Ana's phone number": "table/phones.csv",
    "how do I open the safe": "notes/safe.md",
    "how much is the service charge": "mail/landlord.eml",
    "what do I owe the landlord for the service charge": "mail/landlord.eml",
    "where is my parcel": "mail/parcel.eml",
    "which plant is in the bathroom": "table/plants.csv",
    "Kessler phone number": "table/phones.csv",
}

GERMAN = {
    "haus/mietvertrag.md": (
        "MIETVERTRAG. Was in diesem Vertrag steht, ist der Wille der Parteien, und was nicht "
        "darin steht, ist nicht vereinbart. Der Mieter hat die Wohnung so zu halten, wie sie "
        "ist. Was der Mieter beschädigt, ist von ihm zu ersetzen. Die Tür der Wohnung ist "
        "abzuschließen, wenn der Mieter nicht da ist. Die Miete beträgt 900 Euro im Monat und "
        "ist am dritten Werktag fällig. Wie hoch die Kaution ist, steht in der Anlage: drei "
        "Monatsmieten.\n"
        "\n"
        "Wann der Vermieter die Wohnung betreten darf, ist in der Hausordnung geregelt. Wo "
        "Fahrräder stehen dürfen, ist dort auch geregelt. Wer einen Schlüssel verliert, hat "
        "das Schloss zu bezahlen. Die Frist ist drei Monate. Der Code of Conduct der "
        "Verwaltung ist Teil des Vertrags."
    ),
    "haus/tuer.md": "Code der Tür: 4711#. Ändert sich im Juni.",
    "haus/wlan.txt": "WLAN: HeronNetz, Passwort blauer-otter-22",
    "haus/heizung.md": "Heizungsmonteur: Frau Petrov, kommt jeden Oktober, 0151 555 017.",
    "haus/muell.csv": (
        "Tonne: Papier | Tag: Montag | Woche: gerade\nTonne: Bio | Tag: Donnerstag | Woche: jede"
    ),
    "post/zahnarzt.eml": (
        "From: praxis@example.org\n"
        "Subject: Ihr Termin\n"
        "\n"
        "Sehr geehrte Frau Beck, Ihr Termin beim Zahnarzt ist am 14. Juni um 9:30 Uhr. Bitte "
        "bringen Sie die Karte mit."
    ),
    "post/versicherung.eml": (
        "From: service@example.org\n"
        "Subject: Ihre Police\n"
        "\n"
        "Ihre Haftpflichtversicherung hat die Nummer HV-20-118. Der Beitrag ist 64 Euro im "
        "Jahr."
    ),
}

ABOUT_GERMAN = {
    "was ist der Code der Tür": "haus/tuer.md",
    "Wie lautet der Code für die Tür?": "haus/tuer.md",
    "wie ist das Passwort vom WLAN": "haus/wlan.txt",
    "wann kommt der Heizungsmonteur": "haus/heizung.md",
    "wie hoch ist die Miete": "haus/mietvertrag.md",
    "an welchem Tag wird Papier abgeholt": "haus/muell.csv",
    "wann ist mein Termin beim Zahnarzt": "post/zahnarzt.eml",
    "was ist die Nummer der Haftpflichtversicherung": "post/versicherung.eml",
    "Wer bezahlt das Schloss, wenn der Schlüssel weg ist?": "haus/mietvertrag.md",
    "wann wird die Tonne Bio geleert": "haus/muell.csv",
    "Was kostet die Haftpflichtversicherung im Jahr?": "post/versicherung.eml",
    "Telefonnummer vom Heizungsmonteur": "haus/heizung.md",
    "WLAN Passwort": "haus/wlan.txt",
}

CHINESE = {
    "合同.md": (
        "租赁合同。什么是违约,什么不是违约,由本合同规定。房屋的门是房东的财产,租客离开时要锁门"
        "。租金是每月三千元,在每月五日以前支付。押金是多少,由双方约定,一般是三个月的租金。什么"
        "时候可以进入房屋,由双方商定。网络是谁安装的,费用就由谁承担。"
    ),
    "门.md": "大门密码:4711#,六月更换。",
    "无线.txt": "无线网络名称 HeronNet,密码 otter-22。",
    "牙医.eml": ("发件人:诊所\n主题:预约\n\n您的牙医预约在六月十四日上午九点半。"),
    "账目.csv": (
        "日期:五月三日 | 内容:去苏州的火车票 | 金额:48.20\n"
        "日期:五月九日 | 内容:苏州的酒店 | 金额:212.00"
    ),
}

ABOUT_CHINESE = {
    "门的密码是什么": "门.md",
    "大门的密码是多少?": "门.md",
    "无线网络的密码是什么": "无线.txt",
    "每月租金是多少": "合同.md",
    "牙医是什么时候": "牙医.eml",
    "苏州的酒店花了多少钱": "账目.csv",
    "押金是多少": "合同.md",
    "大门密码什么时候更换": "门.md",
    "去苏州的火车票多少钱": "账目.csv",
}

JAPANESE = {
    "契約書.md": (
        "賃貸借契約書。何が本契約に含まれるか、何が含まれないかは、ここに定める。玄関のドアは外"
        "出時に施錠すること。家賃は月九万円で、毎月五日までに支払う。敷金はいくらですか、という"
        "問いには別紙で答える。鍵をなくした者が交換の費用を払う。いつ立ち入るか、どこに自転車を"
        "置くかは、管理会社が決める。暗証とは何か、番号とは何かは管理規約による。"
    ),
    "玄関.md": "玄関の暗証番号:4711#。六月に変わる。",
    "無線.txt": "Wi-Fi:HeronNet、パスワードは otter-22。",
    "歯医者.eml": (
        "差出人:クリニック\n件名:ご予約\n\n歯医者のご予約は六月十四日の午前九時半です。"
    ),
    "経費.csv": (
        "日付:五月三日 | 内容:京都への新幹線 | 金額:13,320\n"
        "日付:五月九日 | 内容:京都のホテル | 金額:21,200"
    ),
}

ABOUT_JAPANESE = {
    "玄関の暗証番号は何ですか": "玄関.md",
    "Wi-Fiのパスワードは何ですか": "無線.txt",
    "家賃はいくらですか": "契約書.md",
    "歯医者の予約はいつですか": "歯医者.eml",
    "京都のホテルはいくらですか": "経費.csv",
    "敷金はいくら": "契約書.md",
    "パスワードを教えてください": "無線.txt",
    "新幹線の金額": "経費.csv",
    "暗証番号はいつ変わりますか": "玄関.md",
}

FOLDERS = {
    "home": Folder(HOME, ABOUT_HOME),
    "mails and tables": Folder(MAILS_AND_TABLES, ABOUT_MAILS_AND_TABLES),
    "German": Folder(GERMAN, ABOUT_GERMAN),
    "Chinese": Folder(CHINESE, ABOUT_CHINESE),
    "Japanese": Folder(JAPANESE, ABOUT_JAPANESE),
    "scripts without spaces": Folder(NOTES, ABOUT_NOTES),
}
